//! A logged request as a command line.

use std::fmt::Write;

use crate::manage::RenderedRequest;

/// Returns the command that sends a request again. The headers are those that were sent; values of
/// custom headers are masked.
pub fn command(url: &str, request: &RenderedRequest) -> String {
    let mut command = format!("curl --request POST {}", quoted(url));

    for (name, value) in &request.headers {
        let header = quoted(&format!("{name}: {value}"));
        let _ = write!(command, " \\\n  --header {header}");
    }

    let _ = write!(command, " \\\n  --data-raw {}", quoted(&request.body));
    command
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_each_word_as_it_was_sent() {
        let request = RenderedRequest {
            headers: BTreeMap::from([("X-Note".to_owned(), "it's $HOME".to_owned())]),
            body: r#"{"title":"Don't `stop` \"now\" \\ !"}"#.to_owned(),
        };
        let script = format!(
            "curl() {{ printf '%s\\n' \"$@\"; }}\n{}",
            command("https://receiver.example/in?a=1&b='2'", &request)
        );
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        let words = String::from_utf8(output.stdout).unwrap();
        let expected = [
            "--request",
            "POST",
            "https://receiver.example/in?a=1&b='2'",
            "--header",
            "X-Note: it's $HOME",
            "--data-raw",
            &request.body,
        ];

        assert_eq!(words.lines().collect::<Vec<_>>(), expected);
    }
}
