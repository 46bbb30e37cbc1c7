//! Two network namespaces with a wire between them, which drops or delays packets, or is cut, on order.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Address of the far end.
pub(crate) const FAR: &str = "10.77.0.2";

/// A wire, for as long as it lives.
pub(crate) struct Wire {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Processes in the namespaces of its ends.
    pub(crate) near: u32,
    pub(crate) far: u32,
}

impl Wire {
    /// Opens a wire. Returns none, and prints why, where an ordinary user gets no network namespace or no TUN
    /// device.
    pub(crate) fn open() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/wire.py");
        let mut child = Command::new("unshare")
            .args(["-Urn", "python3"])
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let orders = child.stdin.take().expect("it is piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it says who it is, or ends");
        let Some((near, far)) = line.trim().split_once(' ') else {
            let _ = child.wait();
            eprintln!("not tested: this machine gives ordinary users no network namespace with a TUN device");
            return None;
        };
        let number = |word: &str| word.parse().expect("a process");
        let (near, far) = (number(near), number(far));
        Some(Self { child, orders, answers, near, far })
    }

    /// Sends an order of the script for all further packets.
    pub(crate) fn set(&mut self, what: &str) {
        writeln!(self.orders, "{what}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        assert_eq!(line, "ok\n");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Killing the child also ends its own child.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
