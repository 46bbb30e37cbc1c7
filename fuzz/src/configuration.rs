//! The daemon's configuration file: each error has its line, and a valid file stays valid.

use sluice_control::config::{Config, parse};
use sluice_spec::DriveSpec;
use std::collections::HashSet;
use std::path::Path;

/// Name of the file that the text is attributed to.
const FILE: &str = "/etc/sluice.toml";

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text, Path::new(FILE)) {
        Ok(config) => check(&config),
        Err(problem) => {
            let line = line(&problem.error).unwrap_or_else(|| panic!("no line: {}", problem.error));
            let lines = 1 + text.matches('\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}: {}", problem.error);
        }
    }
}

/// Returns the line number at the begin of a message, after the name of the file.
fn line(message: &str) -> Option<usize> {
    let (line, words) = message.strip_prefix(FILE)?.strip_prefix(':')?.split_once(": ")?;
    line.parse().ok().filter(|_| !words.is_empty())
}

fn check(config: &Config) {
    assert!(config.daemon.access().mode <= 0o7777);
    let mut names = HashSet::new();
    for drive in &config.drives {
        assert!(names.insert(&drive.name), "two drives are called {}", drive.name);
        assert!(drive.reactor.is_none_or(|reactor| reactor < config.daemon.reactors()));
        check_drive(drive);
    }
}

/// Checks a drive, and that it is restored from the forms in which it is sent and stored.
pub(crate) fn check_drive(drive: &DriveSpec) {
    assert_eq!(drive.check(), Ok(()));
    assert!(!drive.name.contains('/') && drive.serial().len() <= 20);
    let mut identifiers = HashSet::new();
    for (nsid, namespace) in drive.numbered() {
        assert!(namespace.target().is_ok() && drive.namespace(nsid) == Some(namespace));
        assert!(identifiers.insert(drive.namespace_uuid(nsid, &[])));
    }
    let json = serde_json::to_string(drive).expect("plain data");
    assert_eq!(serde_json::from_str::<DriveSpec>(&json).as_ref().ok(), Some(drive), "{json}");
}
