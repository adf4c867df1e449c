// How fast do Kafka's own Java share consumers read a topic? So many threads, one consumer each, implicit
// acknowledgement, from the first record to the last. Run as a source file on the broker's jars:
// java -cp 'jars/broker/*' ShareConsumers.java <bootstrap servers> <group> <topic> <records> <consumers>

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ShareConsumers {
    public static void main(String[] given) throws Exception {
        long wanted = Long.parseLong(given[3]);
        AtomicLong done = new AtomicLong();
        AtomicLong first = new AtomicLong(Long.MAX_VALUE);
        AtomicLong last = new AtomicLong();
        Thread[] threads = new Thread[Integer.parseInt(given[4])];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> consume(given, wanted, done, first, last));
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (done.get() < wanted) {
            System.err.println(done.get() + " of " + wanted + " records");
            System.exit(1);
        }
        System.out.println((last.get() - first.get()) / 1e9);
    }

    static void consume(String[] given, long wanted, AtomicLong done, AtomicLong first, AtomicLong last) {
        Properties config = new Properties();
        config.put("bootstrap.servers", given[0]);
        config.put("group.id", given[1]);
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(config)) {
            consumer.subscribe(List.of(given[2]));
            while (done.get() < wanted) {
                int count = consumer.poll(Duration.ofMillis(200)).count();
                if (count > 0) {
                    long now = System.nanoTime();
                    first.accumulateAndGet(now, Math::min);
                    last.accumulateAndGet(now, Math::max);
                    done.addAndGet(count);
                }
            }
        }
    }
}
