//! Client of QEMU's monitor (QMP), as far as a drive is plugged into a running machine and out again.

use serde_json::{Value, json};
use sluice_spec::error::{ApiError, Kind};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of a guest to release a device, whose I/O it ends first.
const RELEASE_LIMIT: Duration = Duration::from_secs(60);

/// Bytes of a message: the greeting and events are far shorter.
const MESSAGE_MAX: u64 = 1 << 20;

/// Monitor of a machine, ready for commands.
#[derive(Debug)]
pub(crate) struct Monitor {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    /// Major and minor number of QEMU.
    pub(crate) version: (u64, u64),
}

impl Monitor {
    /// Connects to a monitor's socket.
    ///
    /// # Errors
    /// Nothing listens there, or it is no monitor of QEMU, or the monitor has another client.
    pub(crate) fn connect(path: &Path) -> Result<Self, ApiError> {
        let stream = UnixStream::connect(path).map_err(|error| {
            ApiError::new(Kind::Unreachable, format!("cannot connect to {}: {error}", path.display()))
                .hint("QEMU makes it: -qmp unix:PATH,server=on,wait=off")
        })?;
        let mut monitor = Self { path: path.to_owned(), stream: BufReader::new(stream), version: (0, 0) };
        let greeting = monitor.receive(Instant::now() + ANSWER_LIMIT)?;
        let Some(about) = greeting.get("QMP") else {
            return Err(monitor.trouble("it is no monitor of QEMU"));
        };
        let number = |name: &str| about["version"]["qemu"][name].as_u64().unwrap_or_default();
        monitor.version = (number("major"), number("minor"));
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Adds a device.
    ///
    /// # Errors
    /// QEMU refuses it.
    pub(crate) fn add_device(&mut self, device: &Value) -> Result<(), ApiError> {
        self.execute("device_add", device).map(drop)
    }

    /// Orders the removal of a device, and waits until the guest has released it.
    ///
    /// # Errors
    /// QEMU refuses it, or the guest does not release the device.
    pub(crate) fn remove_device(&mut self, id: &str) -> Result<(), ApiError> {
        self.execute("device_del", &json!({ "id": id }))?;
        let until = Instant::now() + RELEASE_LIMIT;
        loop {
            let message = self.receive(until)?;
            let is_of_device = message["data"]["device"] == id;
            match message["event"].as_str() {
                Some("DEVICE_DELETED") if is_of_device => return Ok(()),
                Some("DEVICE_UNPLUG_GUEST_ERROR") if is_of_device => {
                    return Err(self.trouble("the guest does not release the device"));
                }
                _ => {}
            }
        }
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, ApiError> {
        let message = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        let sent = self.stream.get_ref().set_write_timeout(Some(ANSWER_LIMIT));
        sent.and_then(|()| self.stream.get_mut().write_all(message.as_bytes()))
            .map_err(|error| self.trouble(&error.to_string()))?;
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            let mut answer = self.receive(until)?;
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("QEMU refuses it");
                return Err(self.trouble(&format!("{command}: {why}")));
            }
            // Events come between answers.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Receives the next message.
    fn receive(&mut self, until: Instant) -> Result<Value, ApiError> {
        let mut line = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.trouble("it does not answer: only one client at a time is served"));
            }
            let limit = self.stream.get_ref().set_read_timeout(Some(left));
            let room = MESSAGE_MAX - line.len() as u64;
            let read = limit.and_then(|()| self.stream.by_ref().take(room).read_until(b'\n', &mut line));
            match read {
                Ok(_) if line.ends_with(b"\n") => break,
                Ok(_) if line.len() as u64 == MESSAGE_MAX => {
                    return Err(self.trouble("its message has no end"));
                }
                Ok(_) => return Err(self.trouble("it has closed the connection")),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(self.trouble(&error.to_string())),
            }
        }
        serde_json::from_slice(&line).map_err(|_| self.trouble("its message is no JSON"))
    }

    fn trouble(&self, why: &str) -> ApiError {
        ApiError::conflict(format!("the monitor at {}: {why}", self.path.display()))
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// Runs a monitor that sends these lines after the greeting, each when a command has arrived. Returns the commands.
    fn with_monitor(
        greeting: &'static str,
        answers: &'static [&'static str],
        act: impl FnOnce(&Path),
    ) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("monitor");
        let listener = UnixListener::bind(&path).expect("a socket");
        let monitor = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream);
            let mut commands = Vec::new();
            lines.get_mut().write_all(greeting.as_bytes()).expect("sent");
            for answer in answers {
                let mut line = String::new();
                lines.read_line(&mut line).expect("a command");
                commands.push(serde_json::from_str(&line).expect("JSON"));
                lines.get_mut().write_all(answer.as_bytes()).expect("sent");
            }
            commands
        });
        act(&path);
        monitor.join().expect("it has ended")
    }

    const GREETING: &str =
        "{\"QMP\": {\"version\": {\"qemu\": {\"major\": 10, \"minor\": 1}}, \"capabilities\": []}}\n";
    const DONE: &str = "{\"return\": {}}\n";

    #[test]
    fn a_device_is_added_and_removed() {
        const EVENTS: &str = "{\"event\": \"RESUME\"}\n{\"return\": {}}\n\
                              {\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/machine/other\"}}\n\
                              {\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"sluice-a\"}}\n";
        let commands = with_monitor(GREETING, &[DONE, DONE, EVENTS], |path| {
            let mut monitor = Monitor::connect(path).expect("a monitor");
            assert_eq!(monitor.version, (10, 1));
            monitor.add_device(&json!({ "driver": "vfio-user-pci", "id": "sluice-a" })).expect("added");
            monitor.remove_device("sluice-a").expect("removed");
        });
        let names: Vec<&str> = commands.iter().filter_map(|command| command["execute"].as_str()).collect();
        assert_eq!(names, ["qmp_capabilities", "device_add", "device_del"]);
        assert_eq!(commands[1]["arguments"]["driver"], "vfio-user-pci");
    }

    #[test]
    fn refusals_and_other_servers_are_reported() {
        const REFUSED: &str = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"Bus 'x' not found\"}}\n";
        const KEPT: &str =
            "{\"return\": {}}\n{\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {\"device\": \"d\"}}\n";
        with_monitor(GREETING, &[DONE, REFUSED, KEPT], |path| {
            let mut monitor = Monitor::connect(path).expect("a monitor");
            let problem = monitor.add_device(&json!({})).expect_err("refused");
            assert!(problem.error.ends_with("device_add: Bus 'x' not found"), "{problem:?}");
            let problem = monitor.remove_device("d").expect_err("kept");
            assert!(problem.error.contains("does not release"), "{problem:?}");
        });
        for (greeting, why) in [("hello\n", "no JSON"), ("{}\n", "no monitor"), ("{\"QM", "closed")] {
            with_monitor(greeting, &[], |path| {
                let problem = Monitor::connect(path).expect_err("no monitor");
                assert!(problem.error.contains(why), "{problem:?}");
            });
        }
        assert!(Monitor::connect(Path::new("/nowhere")).expect_err("nothing").hint.is_some());
    }
}
