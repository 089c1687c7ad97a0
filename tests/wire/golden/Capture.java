// Writes each message of cases.json with Apache Kafka's own classes, one frame (without its length) per line of hex.
// Run: java -cp '<directory of Kafka 4.3.1 jars>/*' Capture.java cases.json > frames.json
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.ResponseHeader;

public class Capture {
    static final int CORRELATION_ID = 77;
    static final String CLIENT_ID = "golden";

    public static void main(String[] args) throws Exception {
        System.out.println("[");
        String separator = "";
        for (JsonNode one : new ObjectMapper().readTree(new File(args[0]))) {
            String name = one.get("message").asText();
            for (JsonNode version : one.get("versions")) {
                byte[] frame = frame(name, one.get("fields"), (short) version.asInt());
                String hex = HexFormat.of().formatHex(frame);
                System.out.printf("%s{\"message\": \"%s\", \"version\": %s, \"hex\": \"%s\"}", separator, name, version, hex);
                separator = ",\n";
            }
        }
        System.out.println("\n]");
    }

    static byte[] frame(String name, JsonNode fields, short version) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        boolean inFrame = name.endsWith("Request") || name.endsWith("Response");
        Message body = body(name + (inFrame ? "Data" : ""), fields, version);
        if (inFrame) {
            ApiKeys api = ApiKeys.forId(((ApiMessage) body).apiKey());
            if (name.endsWith("Request")) {
                RequestHeader header = new RequestHeader(api, version, CLIENT_ID, CORRELATION_ID);
                write(out, header.data(), header.headerVersion());
            } else {
                ResponseHeader header = new ResponseHeader(CORRELATION_ID, api.responseHeaderVersion(version));
                write(out, header.data(), header.headerVersion());
            }
        }
        write(out, body, version);
        return out.toByteArray();
    }

    static Message body(String name, JsonNode fields, short version) throws Exception {
        Class<?> converter = Class.forName("org.apache.kafka.common.message." + name + "JsonConverter");
        return (Message) converter.getMethod("read", JsonNode.class, short.class).invoke(null, fields, version);
    }

    static void write(ByteArrayOutputStream out, Message message, short version) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, version).buffer();
        out.write(buffer.array(), buffer.arrayOffset() + buffer.position(), buffer.remaining());
    }
}
