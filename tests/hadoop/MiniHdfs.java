// NameNodes and DataNodes on loopback, in one JVM: MiniHdfs DIRECTORY DATA_NODES NAME_NODES [KEY=VALUE
// ...], with one or two NameNodes and this configuration. It writes the configuration of clients to
// DIRECTORY/core-site.xml, prints "READY <uri>", then obeys commands on its standard input and answers
// each with a line that begins with OK or ERROR. It ends with its input.

import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;
import org.apache.hadoop.hdfs.server.namenode.ha.HATestUtil;
import org.apache.hadoop.security.UserGroupInformation;

public class MiniHdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
    conf.set("dfs.namenode.fs-limits.min-block-size", "1024");
    conf.set("dfs.namenode.heartbeat.recheck-interval", "1000");
    conf.set("dfs.heartbeat.interval", "1");
    int dataNodes = Integer.parseInt(arguments[1]);
    boolean isHa = Integer.parseInt(arguments[2]) == 2;
    for (int i = 3; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      conf.set(pair[0], pair[1]);
    }
    UserGroupInformation.setConfiguration(conf);
    if (UserGroupInformation.isSecurityEnabled()) {
      UserGroupInformation.loginUserFromKeytab(
          conf.get("dfs.namenode.kerberos.principal"), conf.get("dfs.namenode.keytab.file"));
    }
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf).numDataNodes(dataNodes);
    if (isHa) {
      conf.set("dfs.ha.tail-edits.period", "1");
      builder.nnTopology(MiniDFSNNTopology.simpleHATopology());
    }
    MiniDFSCluster cluster = builder.build();
    int active = 0;
    if (isHa) {
      cluster.transitionToActive(active);
      cluster.waitActive(active);
      HATestUtil.setFailoverConfigurations(cluster, conf, "tests-ha");
      for (int i = 0; i < 2; i++) { // as in a configuration by hand: without the scheme
        String address = cluster.getNameNode(i).getNameNodeAddressHostPortString();
        conf.set("dfs.namenode.rpc-address.tests-ha.nn" + (i + 1), address);
      }
    } else {
      cluster.waitActive();
      FileSystem.setDefaultUri(conf, cluster.getURI());
    }
    try (OutputStream out = new FileOutputStream(new File(arguments[0], "core-site.xml"))) {
      conf.writeXml(out);
    }
    System.out.println("READY " + FileSystem.getDefaultUri(conf));
    MiniDFSCluster.DataNodeProperties stopped = null;
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.trim().split(" ");
      try {
        DistributedFileSystem files = (DistributedFileSystem) FileSystem.get(conf);
        switch (words[0]) {
          case "restart-name-node":
            cluster.restartNameNode(true);
            break;
          case "stop-active":
            cluster.shutdownNameNode(active);
            break;
          case "take-over":
            // The other NameNode takes over, and the one that was stopped returns as standby.
            active = 1 - active;
            cluster.transitionToActive(active);
            cluster.waitActive(active);
            cluster.restartNameNode(1 - active, false);
            break;
          case "swap":
            // The NameNodes exchange their roles, and both stay up.
            cluster.transitionToStandby(active);
            active = 1 - active;
            cluster.transitionToActive(active);
            break;
          case "swap-in-safe-mode":
            // The other NameNode starts again, and takes over before it has left safe mode: only the
            // command "safe-mode off" ends that.
            cluster.getConfiguration(1 - active).set("dfs.namenode.safemode.min.datanodes", "99");
            cluster.restartNameNode(1 - active, false);
            cluster.getConfiguration(1 - active).unset("dfs.namenode.safemode.min.datanodes");
            cluster.transitionToStandby(active);
            active = 1 - active;
            cluster.transitionToActive(active);
            break;
          case "no-active":
            // Until the next swap.
            cluster.transitionToStandby(active);
            break;
          case "stop-data-node":
            stopped = cluster.stopDataNode(0);
            break;
          case "start-data-node":
            cluster.restartDataNode(stopped);
            cluster.waitActive();
            break;
          case "safe-mode":
            // Asked of the active one: a standby has a safe mode of its own.
            cluster
                .getNameNodeRpc(active)
                .setSafeMode(
                    words[1].equals("on")
                        ? SafeModeAction.SAFEMODE_ENTER
                        : SafeModeAction.SAFEMODE_LEAVE,
                    false);
            break;
          case "quota":
            files.setQuota(new Path(words[1]), Long.MAX_VALUE, Long.parseLong(words[2]));
            break;
          default:
            throw new IllegalArgumentException("unknown command " + line);
        }
        System.out.println("OK " + line);
      } catch (Throwable error) {
        System.out.println("ERROR " + line + ": " + error);
      }
    }
    cluster.shutdown();
    System.exit(0);
  }
}
