//! Reads what the developer types while `walhook listen` runs.

use std::io::{BufRead, IsTerminal};

use tokio::sync::mpsc;

/// Returns a channel that receives a message for each `r` and Enter. The terminal stays in its
/// usual mode, so that there is nothing to restore when the process ends, however it ends.
///
/// Without a terminal, and in the background, where reading would stop the process, the channel is
/// closed.
pub fn read() -> mpsc::Receiver<()> {
    // 1: a second request to send the same event again while the first waits is dropped.
    let (sender, requests) = mpsc::channel(1);

    if can_read() {
        // A thread of its own: the runtime would wait for one of its threads until the next Enter.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match line.trim() {
                    "r" => {
                        let _ = sender.try_send(());
                    }
                    "" => {}
                    _ => {
                        eprintln!("Press r and Enter to send the last event again, Ctrl-C to stop.")
                    }
                }
            }
        });
    }

    requests
}

/// Whether standard input is a terminal that this process may read.
pub fn can_read() -> bool {
    let input = std::io::stdin();
    input.is_terminal()
        && rustix::termios::tcgetpgrp(&input).is_ok_and(|group| group == rustix::process::getpgrp())
}
