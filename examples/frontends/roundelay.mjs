#!/usr/bin/env node
/* A frontend for Roundelay nodes in one file: Node.js and nothing else.
 *
 *   node roundelay.mjs ADDR listen GROUP [COUNT]     print messages as they are delivered
 *   node roundelay.mjs ADDR send GROUP TEXT...       send each TEXT, print the receipts
 *   node roundelay.mjs ADDR someone GROUP TEXT...    ... to one application each
 *   node roundelay.mjs ADDR ask QUESTION [OF]        members GROUP, groups, status, why NODE
 *   node roundelay.mjs ADDR paper GROUP TEXT...      with the five commands of AutoRM alone
 *
 * ADDR is HOST:PORT or unix:PATH.  The bytes are explained in docs/frontend-protocol.md.
 *
 *   import { Frontend } from "./roundelay.mjs";
 *   const node = await Frontend.connect("127.0.0.1:6678");
 *   node.on("message", ({ seq, sender, data }) => console.log(seq, sender, data.toString()));
 *   node.join("token:orders");
 *   const { seq } = await node.broadcast("token:orders", "two apples");
 */
import { EventEmitter, once } from "node:events";
import net from "node:net";
import { fileURLToPath } from "node:url";

const u32 = (n) => { const b = Buffer.alloc(4); b.writeUInt32BE(n); return b; };
const u16 = (n) => { const b = Buffer.alloc(2); b.writeUInt16BE(n); return b; };
const i64 = (n) => { const b = Buffer.alloc(8); b.writeBigInt64BE(BigInt(n)); return b; };
const short = (text) => {
  const name = Buffer.from(text);
  if (name.length > 255) throw new RangeError("a name has at most 255 bytes");
  return Buffer.concat([Buffer.from([name.length]), name]);
};

/** A connection to a node.  Events: message, view, stop, goon, failure, close. */
export class Frontend extends EventEmitter {
  #socket; #chunks = []; #held = 0; #need = 5; #tag = 0; #waiting = new Map();
  #questions = new Map(); #hello;

  static async connect(address, { name = "", extended = true } = {}) {
    const frontend = new Frontend(address);
    await once(frontend.#socket, "connect");
    if (extended) {
      const answered = new Promise((done, failed) => { frontend.#hello = { done, failed }; });
      frontend.#b("HELO", "", JSON.stringify({ extended: true, name }));
      frontend.node = await answered;
    }
    return frontend;
  }

  constructor(address) {
    super();
    const colon = address.lastIndexOf(":");
    const host = address.slice(0, colon).replace(/^\[|\]$/g, "");
    this.#socket = net.createConnection(
      address.startsWith("unix:") ? { path: address.slice(5) } : { host, port: +address.slice(colon + 1) });
    this.#socket.setNoDelay?.(true);
    this.#socket.on("data", (chunk) => this.#data(chunk));
    this.#socket.on("close", () => this.#closed());
    this.#socket.on("error", (error) => { this.error = error; });
  }

  join(group) { this.#a("JOIN", group); }
  leave(group) { this.#a("LEAV", group); }
  sendEveryone(group, data) { this.#b("SNDE", group, data); }
  sendSomeone(group, data) { this.#b("SNDS", group, data); }
  close() { this.#socket.end(); }

  /** Send to everyone; resolves to {tag, seq, time} when the messages have their place for good. */
  broadcast(group, ...messages) { return this.#send("SNDR", group, Buffer.alloc(0), messages); }
  /** Send to exactly one application of one node. */
  someone(group, ...messages) { return this.#send("SNDO", group, Buffer.alloc(0), messages); }
  /** Send to the nodes named. */
  send(group, to, ...messages) {
    return this.#send("SNDD", group, Buffer.concat([Buffer.from([to.length]), ...to.map(short)]), messages);
  }

  /** members (of a group), groups, status, why (of a node). */
  ask(question, of = null) {
    const id = this.#tag++;
    this.#b("ASKQ", "", JSON.stringify({ id, ask: question, of }));
    return new Promise((done, failed) => this.#questions.set(id, { done, failed }));
  }

  #send(command, group, names, messages) {
    const tag = this.#tag++;
    const parts = messages.map((message) => Buffer.from(message));
    const table = [u16(parts.length), ...parts.map((part) => u32(part.length))];
    this.#b(command, group, Buffer.concat([i64(tag), names, ...table, ...parts]));
    return new Promise((done, failed) => this.#waiting.set(tag, { done, failed }));
  }

  #a(command, group) { this.#socket.write(Buffer.concat([Buffer.from(command), short(group)])); }
  #b(command, group, message) {
    const body = Buffer.from(message);
    this.#socket.write(Buffer.concat([Buffer.from(command), short(group), u32(body.length), body]));
  }

  /** Chunks are joined only when what they wait for is there, so a large message costs no more. */
  #data(chunk) {
    this.#chunks.push(chunk);
    this.#held += chunk.length;
    if (this.#held < this.#need) return;
    const data = this.#chunks.length === 1 ? chunk : Buffer.concat(this.#chunks);
    let at = 0;
    for (;;) {
      const left = data.length - at;
      this.#need = 5;
      if (left < 5) break;
      const command = data.toString("latin1", at, at + 4);
      const start = at + 5 + data[at + 4];
      const short = command === "STOP" || command === "GOON";
      this.#need = start - at + (short ? 0 : 4);
      if (left < this.#need) break;
      const size = short ? 0 : data.readUInt32BE(start);
      this.#need += size;
      if (left < this.#need) break;
      const end = at + this.#need;
      this.#packet(command, data.toString("utf8", at + 5, start), data.subarray(end - size, end));
      at = end;
    }
    this.#chunks = at < data.length ? [data.subarray(at)] : [];
    this.#held = data.length - at;
  }

  #packet(command, group, body) {
    if (command === "RCVE") this.emit("message", { group, data: body });
    else if (command === "RCVX") this.#batch(group, body);
    else if (command === "RCPT") {
      const tag = Number(body.readBigInt64BE(0));
      this.#settle(tag)?.done({ tag, seq: Number(body.readBigInt64BE(8)), time: body.readBigInt64BE(16) });
    } else if (command === "FAIL") {
      const error = new Error(body.toString("utf8", 9));
      error.group = group;
      error.indeterminate = (body[8] & 1) !== 0;
      const waiting = this.#settle(Number(body.readBigInt64BE(0)));
      if (waiting) waiting.failed(error);
      else { this.error = error; this.emit("failure", error); }
    } else if (command === "VIEW") this.emit("view", { group, ...JSON.parse(body) });
    else if (command === "STOP" || command === "GOON") this.emit(command.toLowerCase(), group);
    else if (command === "HELO") this.#hello?.done(JSON.parse(body));
    else if (command === "ANSW") {
      const { id, answer, error } = JSON.parse(body);
      const question = this.#questions.get(id);
      this.#questions.delete(id);
      if (error === undefined) question?.done(answer);
      else question?.failed(new Error(error));
    }
  }

  #batch(group, body) {
    const first = Number(body.readBigInt64BE(0));
    const time = body.readBigInt64BE(8);
    let at = 17 + body[16];
    const sender = body.toString("utf8", 17, at);
    const count = body.readUInt16BE(at);
    let start = at + 2 + 4 * count;
    for (let i = 0; i < count; i++) {
      const size = body.readUInt32BE(at + 2 + 4 * i);
      const seq = first < 0 ? null : first + i;
      this.emit("message", { group, seq, sender, time, data: body.subarray(start, start + size) });
      start += size;
    }
  }

  #settle(tag) {
    const waiting = this.#waiting.get(tag);
    this.#waiting.delete(tag);
    return waiting;
  }

  #closed() {
    const error = this.error ?? new Error("the node closed the connection");
    this.#hello?.failed(error);
    for (const waiting of [...this.#waiting.values(), ...this.#questions.values()]) waiting.failed(error);
    this.emit("close");
  }
}

async function main([address, action, group, ...texts]) {
  const usage = "node roundelay.mjs ADDR listen|send|someone|ask|paper GROUP [TEXT...]";
  if (!["listen", "send", "someone", "ask", "paper"].includes(action)) throw new Error(usage);
  const node = await Frontend.connect(address, { name: "javascript", extended: action !== "paper" });
  try {
    if (action === "ask") console.log(JSON.stringify(await node.ask(group, texts[0])));
    else if (action === "send" || action === "someone") {
      const send = (text) => (action === "send" ? node.broadcast(group, text) : node.someone(group, text));
      for (const { tag, seq } of await Promise.all(texts.map(send))) console.log("receipt", tag, seq);
    } else await listen(node, action === "paper", group, texts);
  } finally {
    node.close();
  }
}

async function listen(node, paper, group, texts) {
  let left = paper ? texts.length : +(texts[0] ?? Infinity);
  const done = new Promise((resolve) => {
    node.on("close", resolve);
    node.on("view", ({ members }) => console.log("members", ...members));
    node.on("message", ({ seq, sender, data }) => {
      if (left-- > 0) console.log(...(paper ? [] : [seq ?? "-", sender]), data.toString());
      if (left <= 0) resolve();
    });
  });
  node.join(group);
  if (paper) for (const text of texts) node.sendEveryone(group, text);
  await done;
  if (left > 0) throw node.error ?? new Error("the node closed the connection");
  node.leave(group);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  main(process.argv.slice(2)).catch((error) => { console.error(error.message); process.exitCode = 1; });
}
