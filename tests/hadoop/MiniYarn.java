// A ResourceManager and a NodeManager on loopback, in one JVM. It writes yarn-site.xml and core-site.xml to a
// directory, prints "READY", and ends with its standard input.

import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class MiniYarn {
  public static void main(String[] arguments) {
    try {
      run(Path.of(arguments[0]));
    } catch (Throwable error) {
      error.printStackTrace();
    }
    System.exit(0); // threads of YARN would keep it running
  }

  private static void run(Path directory) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("yarn.nodemanager.resource.memory-mb", "4096");
    conf.set("yarn.scheduler.minimum-allocation-mb", "128");
    conf.set("yarn.nodemanager.vmem-check-enabled", "false");
    conf.set("yarn.nodemanager.pmem-check-enabled", "false");
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    conf.set("yarn.nodemanager.delete.debug-delay-sec", "3600"); // the output of ended containers stays
    conf.set("yarn.resourcemanager.am.max-attempts", "10");
    conf.set("yarn.application.classpath", ""); // jars come from Spark
    conf.set("yarn.resourcemanager.scheduler.class",
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
    MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
    cluster.init(conf);
    cluster.start();
    cluster.waitForNodeManagersToConnect(60_000);
    Files.createDirectories(directory);
    write(directory.resolve("yarn-site.xml"), new Configuration(cluster.getConfig()));
    write(directory.resolve("core-site.xml"), new Configuration(false));
    System.out.println("READY");
    System.in.transferTo(OutputStream.nullOutputStream());
    cluster.stop();
  }

  private static void write(Path file, Configuration conf) throws Exception {
    try (OutputStream output = Files.newOutputStream(file)) {
      conf.writeXml(output);
    }
  }
}
