//! `sluice-holder SOCKET [--patience SECONDS]`

use rustix::event::{EventfdFlags, eventfd};
use sluice_holder::{Limits, Server};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "usage: sluice-holder SOCKET [--patience SECONDS]

Keeps the sockets and the memory of drives while their daemon is gone, so that virtual machines do not notice.
SOCKET is the path that `daemon.holder` names in the configuration of the daemon. SECONDS is the time for which
the drives of a dead daemon are kept, 600 if not given.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, limits) = match &arguments[..] {
        [flag] if flag == "--help" || flag == "-h" => {
            return print(USAGE);
        }
        [flag] if flag == "--version" => {
            return print(concat!("sluice-holder ", env!("CARGO_PKG_VERSION")));
        }
        [path] if !path.starts_with('-') => (PathBuf::from(path), Limits::default()),
        [path, flag, seconds] if flag == "--patience" && seconds.parse::<u64>().is_ok() => {
            let patience = Duration::from_secs(seconds.parse().unwrap_or_default());
            (PathBuf::from(path), Limits { patience, ..Limits::default() })
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    raise_descriptor_limit();
    let serve = || {
        let server = Server::listen(&path, limits)?;
        // Nothing writes to it: the holder ends with a signal, which closes everything.
        let never = eventfd(0, EventfdFlags::CLOEXEC)?;
        // Without systemd nothing is notified.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        server.run(never.as_fd())
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-holder: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// Prints a text. A reader that is gone is no fault.
fn print(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}

/// Raises the limit of descriptors as far as the system permits.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With fewer descriptors it keeps fewer drives.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
