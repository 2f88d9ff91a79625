import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A frontend for Roundelay nodes in one file: Java 17 and nothing else.
 *
 * <pre>
 * java RoundelayFrontend.java ADDR listen GROUP [COUNT]     print messages as they are delivered
 * java RoundelayFrontend.java ADDR send GROUP TEXT...       send each TEXT, print the receipts
 * java RoundelayFrontend.java ADDR someone GROUP TEXT...    ... to one application each
 * java RoundelayFrontend.java ADDR ask QUESTION [OF]        members GROUP, groups, status, why NODE
 * java RoundelayFrontend.java ADDR paper GROUP TEXT...      with the five commands of AutoRM alone
 * </pre>
 *
 * ADDR is HOST:PORT or unix:PATH. The bytes are explained in docs/frontend-protocol.md. Sending
 * blocks while the node has no room. The listener is called by one thread, which reads.
 */
public final class RoundelayFrontend implements AutoCloseable {

    /** What the node says. Override what you want to hear; do not take long. */
    public interface Listener {
        /** seq is the place in the group's total order, or -1; sender is null without HELO. */
        default void message(String group, long seq, String sender, long timeNs, byte[] data) {}

        /** Who is in the group, as JSON: version, members, state. */
        default void view(String group, String json) {}

        /** The node refused something that has no receipt. */
        default void failed(String group, String reason) {}

        /** Back-pressure: the group has no room (true), or has room again (false). */
        default void stopped(String group, boolean stopped) {}

        default void closed(IOException why) {}
    }

    /** A message that has its place for good; seq is -1 in a group without a total order. */
    public record Receipt(long tag, long seq, long timeNs) {}

    /** A message that is not delivered or, if indeterminate, may be delivered or not. */
    public static final class Refused extends IOException {
        private static final long serialVersionUID = 1;

        public final boolean indeterminate;

        Refused(String reason, boolean indeterminate) {
            super(reason);
            this.indeterminate = indeterminate;
        }
    }

    private final SocketChannel channel;
    private final Listener listener;
    private final AtomicLong nextTag = new AtomicLong();
    private final Map<Long, CompletableFuture<Receipt>> receipts = new ConcurrentHashMap<>();
    private final Map<Long, CompletableFuture<String>> answers = new ConcurrentHashMap<>();
    private final CompletableFuture<String> hello = new CompletableFuture<>();
    private volatile IOException last;

    public RoundelayFrontend(String address, String name, boolean extended, Listener listener)
            throws IOException {
        this.listener = listener;
        if (address.startsWith("unix:")) {
            channel = SocketChannel.open(StandardProtocolFamily.UNIX);
            channel.connect(UnixDomainSocketAddress.of(address.substring(5)));
        } else {
            int colon = address.lastIndexOf(':');
            String host = address.substring(0, colon).replaceAll("^\\[|\\]$", "");
            int port = Integer.parseInt(address.substring(colon + 1));
            channel = SocketChannel.open(new InetSocketAddress(host, port));
        }
        Thread reader = new Thread(this::read, "roundelay-frontend");
        reader.setDaemon(true);
        reader.start();
        if (extended) {
            String quoted = name.replace("\\", "\\\\").replace("\"", "\\\"");
            typeB("HELO", "", utf8("{\"extended\":true,\"name\":\"" + quoted + "\"}"));
            hello.join();
        }
    }

    public void join(String group) throws IOException {
        typeA("JOIN", group);
    }

    public void leave(String group) throws IOException {
        typeA("LEAV", group);
    }

    public void sendEveryone(String group, byte[] data) throws IOException {
        typeB("SNDE", group, data);
    }

    public void sendSomeone(String group, byte[] data) throws IOException {
        typeB("SNDS", group, data);
    }

    /** Send to everyone in the group, with a receipt. */
    public CompletableFuture<Receipt> broadcast(String group, byte[]... messages)
            throws IOException {
        return send("SNDR", group, new byte[0], messages);
    }

    /** Send to exactly one application of one node, with a receipt. */
    public CompletableFuture<Receipt> someone(String group, byte[]... messages)
            throws IOException {
        return send("SNDO", group, new byte[0], messages);
    }

    /** Send to the nodes named, with a receipt. */
    public CompletableFuture<Receipt> send(String group, List<String> to, byte[]... messages)
            throws IOException {
        ByteBuffer names = ByteBuffer.allocate(1 + 256 * to.size()).put((byte) to.size());
        for (String name : to) {
            names.put((byte) name(name).length).put(name(name));
        }
        return send("SNDD", group, Arrays.copyOf(names.array(), names.position()), messages);
    }

    /** members (of a group), groups, status, why (of a node): the answer as JSON. */
    public CompletableFuture<String> ask(String question, String of) throws IOException {
        long id = nextTag.getAndIncrement();
        CompletableFuture<String> answer = new CompletableFuture<>();
        answers.put(id, answer);
        String about = of == null ? "" : ",\"of\":\"" + of + "\"";
        typeB("ASKQ", "", utf8("{\"id\":" + id + ",\"ask\":\"" + question + "\"" + about + "}"));
        return answer;
    }

    /** Also leaves all groups. */
    @Override
    public void close() throws IOException {
        channel.close();
    }

    private CompletableFuture<Receipt> send(
            String command, String group, byte[] names, byte[]... messages) throws IOException {
        long tag = nextTag.getAndIncrement();
        int size = 8 + names.length + 2 + 4 * messages.length;
        for (byte[] message : messages) {
            size += message.length;
        }
        ByteBuffer body = ByteBuffer.allocate(size).putLong(tag).put(names);
        body.putShort((short) messages.length);
        for (byte[] message : messages) {
            body.putInt(message.length);
        }
        for (byte[] message : messages) {
            body.put(message);
        }
        CompletableFuture<Receipt> receipt = new CompletableFuture<>();
        receipts.put(tag, receipt);
        typeB(command, group, body.array());
        return receipt;
    }

    private void typeA(String command, String group) throws IOException {
        byte[] name = name(group);
        write(ByteBuffer.allocate(5 + name.length)
                .put(utf8(command)).put((byte) name.length).put(name));
    }

    private void typeB(String command, String group, byte[] message) throws IOException {
        byte[] name = name(group);
        write(ByteBuffer.allocate(9 + name.length + message.length)
                .put(utf8(command)).put((byte) name.length).put(name)
                .putInt(message.length).put(message));
    }

    private synchronized void write(ByteBuffer data) throws IOException {
        data.flip();
        while (data.hasRemaining()) {
            channel.write(data);
        }
    }

    // -- what the node says

    private final ByteBuffer arrived = ByteBuffer.allocate(1 << 16).flip();

    private ByteBuffer take(int size) throws IOException {
        ByteBuffer wanted = ByteBuffer.allocate(size);
        while (wanted.hasRemaining()) {
            if (!arrived.hasRemaining()) {
                arrived.clear();
                int count = channel.read(arrived);
                arrived.flip();
                if (count < 0) {
                    throw new EOFException("the node closed the connection");
                }
            }
            int some = Math.min(arrived.remaining(), wanted.remaining());
            wanted.put(arrived.slice(arrived.position(), some));
            arrived.position(arrived.position() + some);
        }
        return wanted.flip();
    }

    private void read() {
        try {
            for (;;) {
                String command = text(take(4));
                String group = text(take(take(1).get() & 0xff));
                if (command.equals("STOP") || command.equals("GOON")) {
                    listener.stopped(group, command.equals("STOP"));
                } else {
                    packet(command, group, take(take(4).getInt()));
                }
            }
        } catch (IOException error) {
            IOException why = last == null ? error : last;
            hello.completeExceptionally(why);
            receipts.values().forEach(one -> one.completeExceptionally(why));
            answers.values().forEach(one -> one.completeExceptionally(why));
            listener.closed(why);
        }
    }

    private void packet(String command, String group, ByteBuffer body) {
        switch (command) {
            case "RCVE" -> listener.message(group, -1, null, 0, body.array());
            case "RCVX" -> {
                long seq = body.getLong();
                long time = body.getLong();
                byte[] sender = new byte[body.get() & 0xff];
                body.get(sender);
                int[] sizes = new int[body.getShort() & 0xffff];
                for (int i = 0; i < sizes.length; i++) {
                    sizes[i] = body.getInt();
                }
                for (int i = 0; i < sizes.length; i++) {
                    byte[] data = new byte[sizes[i]];
                    body.get(data);
                    String who = new String(sender, StandardCharsets.UTF_8);
                    listener.message(group, seq < 0 ? -1 : seq + i, who, time, data);
                }
            }
            case "RCPT" -> {
                Receipt receipt = new Receipt(body.getLong(), body.getLong(), body.getLong());
                CompletableFuture<Receipt> waiting = receipts.remove(receipt.tag());
                if (waiting != null) {
                    waiting.complete(receipt);
                }
            }
            case "FAIL" -> {
                CompletableFuture<Receipt> waiting = receipts.remove(body.getLong());
                int flags = body.get();
                Refused why = new Refused(text(body), (flags & 1) != 0);
                if ((flags & 2) != 0) {
                    last = why;
                }
                if (waiting != null) {
                    waiting.completeExceptionally(why);
                } else {
                    listener.failed(group, why.getMessage());
                }
            }
            case "VIEW" -> listener.view(group, text(body));
            case "HELO" -> hello.complete(text(body));
            case "ANSW" -> {
                // {"id":0,"answer":…} or {"id":0,"error":"…"}: no need for a library to tell.
                String[] json = text(body).split("[:,]", 4);
                CompletableFuture<String> question = answers.remove(Long.parseLong(json[1]));
                String content = json[3].substring(0, json[3].length() - 1);
                if (question != null && json[2].equals("\"error\"")) {
                    question.completeExceptionally(new Refused(content, false));
                } else if (question != null) {
                    question.complete(content);
                }
            }
            default -> { } // of a later version
        }
    }

    private static byte[] name(String text) {
        byte[] name = utf8(text);
        if (name.length > 255) {
            throw new IllegalArgumentException("a name has at most 255 bytes");
        }
        return name;
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(ByteBuffer data) {
        return StandardCharsets.UTF_8.decode(data).toString();
    }

    // -- the command line

    public static void main(String[] args) throws Exception {
        if (args.length < 3) {
            System.err.println(
                    "java RoundelayFrontend.java ADDR listen|send|someone|ask|paper GROUP [TEXT...]");
            System.exit(2);
        }
        String action = args[1];
        String group = args[2];
        List<String> texts = List.of(args).subList(3, args.length);
        boolean paper = action.equals("paper");
        int count = paper ? texts.size() : texts.isEmpty() ? Integer.MAX_VALUE : 0;
        if (action.equals("listen") && !texts.isEmpty()) {
            count = Integer.parseInt(texts.get(0));
        }
        AtomicInteger left = new AtomicInteger(count);
        CountDownLatch done = new CountDownLatch(1);
        Listener listener = new Listener() {
            @Override
            public void message(String to, long seq, String sender, long time, byte[] data) {
                if (left.getAndDecrement() > 0) {
                    String where = paper ? "" : (seq < 0 ? "-" : seq) + " " + sender + " ";
                    System.out.println(where + new String(data, StandardCharsets.UTF_8));
                }
                if (left.get() <= 0) {
                    done.countDown();
                }
            }

            @Override
            public void view(String of, String json) {
                System.out.println("view " + json);
            }

            @Override
            public void closed(IOException why) {
                done.countDown();
            }
        };
        try (RoundelayFrontend node = new RoundelayFrontend(args[0], "java", !paper, listener)) {
            if (action.equals("ask")) {
                System.out.println(node.ask(group, texts.isEmpty() ? null : texts.get(0)).get());
            } else if (action.equals("send") || action.equals("someone")) {
                List<CompletableFuture<Receipt>> waiting = new ArrayList<>();
                for (String text : texts) {
                    waiting.add(action.equals("send")
                            ? node.broadcast(group, utf8(text)) : node.someone(group, utf8(text)));
                }
                for (CompletableFuture<Receipt> one : waiting) {
                    System.out.println("receipt " + one.get().tag() + " " + one.get().seq());
                }
            } else {
                node.join(group);
                if (paper) {
                    for (String text : texts) {
                        node.sendEveryone(group, utf8(text));
                    }
                }
                done.await();
                if (left.get() > 0) {
                    System.err.println("the node closed the connection");
                    System.exit(1);
                }
                node.leave(group);
            }
        } catch (IOException | ExecutionException error) {
            System.err.println(args[0] + ": " + error.getMessage());
            System.exit(1);
        }
    }
}
