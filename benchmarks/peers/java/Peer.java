// The Java parallel consumer: order KEY, asynchronous commits every 100 ms, no memory of what has happened.
// Same task and same lines as the Python peers: see work.py beside this directory. One argument: the task.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class Peer {
    private static final Duration COMMIT_EVERY = Duration.ofMillis(100);
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private static volatile double beganS;
    private static volatile double beganCpuS;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        JsonNode task = json.readTree(arguments[0]);
        String handler = task.get("handler").asText();
        long nanos = (long) (1e6 * millisOf(handler));
        if (handler.startsWith("async-")) {
            say("{\"skipped\": \"the core module has no asynchronous handlers\"}");
            return;
        }
        long records = task.get("records").asLong();
        long warm = task.get("warm").asLong();
        AtomicLong calls = new AtomicLong();

        Properties properties = new Properties();
        properties.put("bootstrap.servers", task.get("bootstrap").asText());
        properties.put("group.id", task.get("group").asText());
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        ParallelConsumerOptions<byte[], byte[]> options = ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(new KafkaConsumer<>(properties, bytes, new ByteArrayDeserializer()))
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(task.get("concurrency").asInt())
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .commitInterval(COMMIT_EVERY)
                .build();
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(task.get("topic").asText()));
        processor.poll(context -> {
            handle(json, context.getSingleConsumerRecord().value(), handler, nanos);
            long number = calls.incrementAndGet();
            if (number == warm) {
                beganS = nowS();
                beganCpuS = cpuS();
            } else if (number == records) {
                say("{\"handled\": {\"began_s\": " + beganS + ", \"last_s\": " + nowS() + ", \"committed_s\": null}}");
            }
        });

        // The harness closes our standard input when it found everything committed, or when it is gone itself.
        while (System.in.read() >= 0) {
            continue;
        }
        say("{\"ended\": {\"cpu_s\": " + (cpuS() - beganCpuS) + ", \"peak_mib\": " + peakMib() + "}}");
        Runtime.getRuntime().halt(0);
    }

    private static void handle(ObjectMapper json, byte[] value, String handler, long nanos) {
        try {
            json.readTree(value);
            if (handler.startsWith("sleep-")) {
                Thread.sleep(nanos / 1_000_000);
            } else if (handler.startsWith("cpu-")) {
                long until = THREADS.getCurrentThreadCpuTime() + nanos;
                while (THREADS.getCurrentThreadCpuTime() < until) {
                    continue;
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static double millisOf(String handler) {
        int dash = handler.indexOf('-');
        return dash < 0 ? 0 : Double.parseDouble(handler.substring(dash + 1));
    }

    private static double nowS() {
        return System.nanoTime() / 1e9;
    }

    private static double cpuS() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private static double peakMib() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM")) {
                return Double.parseDouble(line.replaceAll("[^0-9]", "")) / 1024;
            }
        }
        return 0;
    }

    private static synchronized void say(String line) {
        System.out.println("@bench " + line);
        System.out.flush();
    }

    private Peer() {}
}
