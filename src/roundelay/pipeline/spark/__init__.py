"""What every job on Spark needs: Java, workers, progress, failures in one line."""
