import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** What Apache's own controller would write: a partition and what is aimed at in, the change record out, line by line. */
public class Changes {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.append(answer(line.split(";", -1))).append('\n');
        }
        System.out.print(out);
    }

    static String answer(String[] f) {
        int[] replicas = numbers(f[0]);
        Uuid[] directories = new Uuid[replicas.length];
        for (int i = 0; i < replicas.length; i++) directories[i] = new Uuid(9, replicas[i]);
        PartitionRegistration partition = new PartitionRegistration.Builder().
            setReplicas(replicas).setDirectories(directories).setIsr(numbers(f[1])).setElr(numbers(f[2])).
            setLastKnownElr(numbers(f[3])).setAddingReplicas(numbers(f[4])).setRemovingReplicas(numbers(f[5])).
            setLeader(Integer.valueOf(f[6])).setLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[7]))).
            setLeaderEpoch(5).setPartitionEpoch(7).build();
        List<Integer> acceptable = list(f[8]);
        PartitionChangeBuilder builder = new PartitionChangeBuilder(partition, new Uuid(1, 1), 0, acceptable::contains,
            MetadataVersion.fromFeatureLevel(Short.parseShort(f[9])), Integer.parseInt(f[10]), f[11].equals("1"));
        builder.setElection(PartitionChangeBuilder.Election.valueOf(f[12]));
        builder.setDefaultDirProvider(broker -> new Uuid(9, broker));
        builder.setTargetIsr(list(f[13]));
        if (!f[14].isEmpty()) builder.setUncleanShutdownReplicas(list(f[14]));
        if (!f[15].isEmpty()) {
            builder.setTargetReplicas(list(f[15])).setTargetAdding(list(f[16])).setTargetRemoving(list(f[17]));
        }
        builder.setTargetLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[18])));
        Optional<ApiMessageAndVersion> built = builder.build();
        if (built.isEmpty()) return "nothing";
        PartitionChangeRecord r = (PartitionChangeRecord) built.get().message();
        return String.join(";", text(r.isr()), "" + r.leader(), text(r.replicas()), text(r.removingReplicas()),
            text(r.addingReplicas()), "" + r.leaderRecoveryState(), text(r.eligibleLeaderReplicas()),
            text(r.lastKnownElr()), r.directories() == null ? "null" : "set", "" + built.get().version());
    }

    static List<Integer> list(String text) {
        return Arrays.stream(numbers(text)).boxed().collect(Collectors.toList());
    }

    static int[] numbers(String text) {
        return text.isEmpty() ? new int[0] : Arrays.stream(text.split(",")).mapToInt(Integer::parseInt).toArray();
    }

    static String text(List<Integer> numbers) {
        return numbers == null ? "null" : numbers.stream().map(String::valueOf).collect(Collectors.joining(","));
    }
}
