import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Posts a body with the client of the JDK as it is: over plain text it asks for HTTP/2 with `Upgrade: h2c`. */
public class Post {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String body : new String[] {arguments[1], arguments[1]}) {
            HttpRequest request =
                HttpRequest.newBuilder(URI.create(arguments[0])).POST(HttpRequest.BodyPublishers.ofString(body)).build();
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
        }
    }
}
