//! A daemon in a process of its own, as users run it.

use super::program;
use super::scratch::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use sluice_spec::error::ApiError;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a daemon until its last socket exists.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Time limit of a daemon to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A daemon with null drives, and all its files in one folder.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    sockets: Vec<PathBuf>,
    scratch: Scratch,
}

impl Daemon {
    /// Starts the daemon and waits until all drives exist.
    pub fn start(drives: u32) -> Result<Self, ApiError> {
        let scratch = Scratch::new()?;
        let folder = scratch.path();
        let config = folder.join("sluice.toml");
        std::fs::write(&config, configuration(folder, drives))
            .map_err(|error| ApiError::io("write", &config, &error))?;
        let log = folder.join("log");
        let log = File::create(&log).map_err(|error| ApiError::io("create", &log, &error))?;
        let mut command = Command::new(program::daemon()?);
        command.arg("serve").arg("--config").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child =
            command.spawn().map_err(|error| ApiError::internal(format!("cannot start a daemon: {error}")))?;
        let sockets = (0..drives).map(|drive| folder.join(format!("drives/d{drive}/cntrl"))).collect();
        let mut daemon = Self { child, sockets, scratch };
        daemon.wait_until_there()?;
        Ok(daemon)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the sockets of its drives.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Returns the socket of its API.
    pub fn api(&self) -> PathBuf {
        self.scratch.path().join("api.sock")
    }

    /// Waits for the API, which the daemon opens last.
    fn wait_until_there(&mut self) -> Result<(), ApiError> {
        let deadline = Instant::now() + START_LIMIT;
        let api = self.scratch.path().join("api.sock");
        while UnixStream::connect(&api).is_err() {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            if ended || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
                return Err(ApiError::internal(format!("the daemon did not start; it says:\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn stop(&mut self) {
        let deadline = Instant::now() + END_LIMIT;
        // An error means that the process has ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(folder: &Path, drives: u32) -> String {
    // Strings of TOML are written as those of JSON.
    let path = |name: &str| serde_json::Value::from(folder.join(name).to_string_lossy());
    let mut text = format!(
        "[daemon]\napi = {}\nsockets = {}\nstate = {}\n",
        path("api.sock"),
        path("drives"),
        path("state")
    );
    for drive in 0..drives {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[drive]]\nname = \"d{drive}\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"1GiB\"\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_understands_its_configuration() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sluice.toml");
        std::fs::write(&file, configuration(folder.path(), 3)).expect("written");
        let config = sluice_control::config::load(&file).expect("it is right");
        let names: Vec<&str> = config.drives.iter().map(|drive| drive.name.as_str()).collect();
        assert_eq!(names, ["d0", "d1", "d2"]);
        assert_eq!(config.daemon.sockets, Some(folder.path().join("drives")));
    }
}
