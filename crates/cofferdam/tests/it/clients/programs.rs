//! Programs in the languages that agents write.

use std::process::Command;

use super::{Place, for_each_user, make, this_test};

/// Tries a program that takes an address, prints what is there, and prints the answer and fails where it is
/// refused.
fn tries(place: &Place, options: &[&str], program: &[&str]) {
    place.reaches(options, &[program, &["https://api.test/ok"]].concat(), "ok");
    place.is_refused(
        options,
        &[program, &["https://other.test/ok"]].concat(),
        "\"code\":\"host_not_allowed\"",
    );
}

#[test]
fn urllib_of_python() {
    let code = "import sys, urllib.error, urllib.request\n\
                try: print(urllib.request.urlopen(sys.argv[1]).read())\n\
                except urllib.error.HTTPError as error: sys.exit(error.read().decode())";
    for_each_user(this_test!("urllib_of_python"), &["/usr/bin/python3"], |place| {
        tries(place, &[], &["-c", code]);
    });
}

#[test]
fn requests_of_python() {
    let code = "import requests, sys\nanswer = requests.get(sys.argv[1])\nprint(answer.text)\nanswer.raise_for_status()";
    let programs = ["/usr/bin/python3", "/usr/lib/python3/dist-packages/requests"];
    for_each_user(this_test!("requests_of_python"), &programs, |place| tries(place, &[], &["-c", code]));
}

#[test]
fn fetch_of_node() {
    let code = "fetch(process.argv[1]).then(async answer => { console.log(await answer.text()); \
                process.exitCode = answer.ok ? 0 : 1 })";
    for_each_user(this_test!("fetch_of_node"), &["/usr/bin/node"], |place| {
        tries(place, &[], &["--", "node", "-e", code]);
    });
}

const GO: &str = r#"
package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil { fmt.Println(err); os.Exit(2) }
	body, _ := io.ReadAll(answer.Body)
	fmt.Println(string(body))
	if answer.StatusCode != 200 { os.Exit(1) }
}
"#;

#[test]
fn a_program_in_go() {
    let Some(go) =
        ["/usr/bin/go", "/usr/local/go/bin/go"].into_iter().find(|path| std::path::Path::new(path).exists())
    else {
        cofferdam_testkit::skip!("there is no Go in /usr/bin or /usr/local/go/bin");
    };
    let built = tempfile::tempdir().unwrap();
    std::fs::write(built.path().join("client.go"), GO).unwrap();
    let mut command = Command::new(go);
    command.args(["build", "-o", "client", "client.go"]).current_dir(built.path());
    make(
        command
            // Kept between runs: what takes long is Go's own library.
            .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local"),
    );
    for_each_user(this_test!("a_program_in_go"), &[go], |place| {
        let folder = place.shown("go");
        std::fs::copy(built.path().join("client"), folder.join("client")).unwrap();
        let [option, value] = place.showing(&folder);
        tries(place, &[&option, &value], &["--", "/inputs/go/client"]);
    });
}

const JAVA: &str = r#"
import java.net.URI;
import java.net.http.*;
public class Client {
    public static void main(String[] words) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(words[0])).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.body());
        System.exit(answer.statusCode() == 200 ? 0 : 1);
    }
}
"#;

#[test]
fn a_program_in_java() {
    for_each_user(this_test!("a_program_in_java"), &["/usr/bin/java", "/usr/bin/javac"], |place| {
        let folder = place.shown("java");
        std::fs::write(folder.join("Client.java"), JAVA).unwrap();
        make(Command::new("/usr/bin/javac").arg("Client.java").current_dir(&folder));
        let [option, value] = place.showing(&folder);
        tries(place, &[&option, &value], &["--", "java", "-cp", "/inputs/java", "Client"]);
    });
}
