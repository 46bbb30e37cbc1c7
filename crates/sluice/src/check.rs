//! `sluice serve --check`: reports all faults at once that would keep a daemon from starting or a drive from
//! opening.

use crate::page::bind;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sluice_control::config::{Config, Metrics, Page, Tcp, examine};
use sluice_control::drives::{Foreseen, foresee, foresee_shared};
use sluice_control::token::Token;
use sluice_spec::error::ApiError;
use sluice_spec::paths::{Places, is_writable_folder};
use sluice_wiring::{Examination, tls_keys};
use std::fs::File;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// A configuration without faults, with notes on possible mistakes.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) config: Config,
    pub(crate) notes: Vec<String>,
}

/// Checks a configuration file and everything that it names. Changes nothing.
///
/// # Errors
/// All faults, one after the other.
pub(crate) fn check(file: &Path, api: Option<PathBuf>) -> Result<Checked, ApiError> {
    let (mut config, faults) = examine(file)?;
    config.daemon.api = api.or(config.daemon.api);
    let places = match config.daemon.places() {
        Ok(places) => places,
        Err(problem) => return Err(all(faults.into_iter().chain([problem]).collect())),
    };
    let runs = is_running(&places);
    let mut found = Examination::new(&places, !runs);
    found.faults = faults;
    if runs {
        found.notes.push("a daemon runs there: what it has in use was not looked at".to_owned());
    }
    check_places(&places, &mut found);
    check_cores(&config.daemon.cores, &mut found);
    check_tcp(&config.tcp, &mut found);
    check_metrics(&config.metrics, &mut found);
    check_page(&config.page, &places, &mut found);
    // A state that cannot be read is reported with the drives.
    let shared = foresee_shared(&config, &places.state).unwrap_or_else(|_| config.shared.clone());
    found.pools(&shared);
    // `examine` has already reported the drives that are wrong by themselves.
    config.drives.retain(|drive| drive.check().is_ok());
    check_drives(&config, &places, &mut found);
    let Examination { faults, notes, .. } = found;
    match faults.is_empty() {
        true => Ok(Checked { config, notes }),
        false => Err(all(faults)),
    }
}

/// Joins the faults into one problem, whose text has each in turn.
fn all(faults: Vec<ApiError>) -> ApiError {
    let kind = faults.first().map(|first| first.kind).unwrap_or_default();
    let words: Vec<String> = faults.iter().map(ToString::to_string).collect();
    ApiError::new(kind, words.join("\nerror: "))
}

/// Returns whether a daemon uses these places, perhaps with this configuration.
fn is_running(places: &Places) -> bool {
    let mut lock = places.api.clone().into_os_string();
    lock.push(".lock");
    let Ok(lock) = File::open(PathBuf::from(lock)) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Checks the drives as they are now, with those created through the API.
fn check_drives(config: &Config, places: &Places, found: &mut Examination<'_>) {
    let Some(drives) = found.note("daemon.state", foresee(config, &places.state)) else {
        return config.drives.iter().for_each(|drive| found.drive(drive));
    };
    for Foreseen { spec, refused } in drives {
        found.drive(&spec);
        found.faults.extend(refused.map(|problem| problem.about(&format!("drive `{}`", spec.name))));
    }
}

fn check_places(places: &Places, found: &mut Examination<'_>) {
    let api = places.api.parent().unwrap_or(Path::new("/"));
    for (key, folder) in
        [("daemon.api", api), ("daemon.sockets", &places.sockets), ("daemon.state", &places.state)]
    {
        found.note(key, is_writable_folder(folder));
    }
    found.note("daemon.api", sluice_control::listen::check_length(&places.api));
}

/// Checks that the processors exist and that this process may use them.
fn check_cores(cores: &[usize], found: &mut Examination<'_>) {
    let Ok(usable) = rustix::thread::sched_getaffinity(None) else { return };
    for core in
        cores.iter().filter(|core| **core >= rustix::thread::CpuSet::MAX_CPU || !usable.is_set(**core))
    {
        let problem = ApiError::invalid(format!("there is no processor {core}, or it may not be used"));
        found
            .faults
            .push(problem.about("daemon.cores").hint("`nproc` and `taskset -p $$` say which there are"));
    }
}

/// Checks that the addresses can be listened on. A test bind is made only where no daemon runs.
fn check_tcp(tcp: &Tcp, found: &mut Examination<'_>) {
    found.note("tcp.discovery_keys", tls_keys(tcp.discovery_keys.as_deref()));
    let addresses = if found.in_use { tcp.addresses().collect() } else { Vec::new() };
    for (key, address) in addresses {
        match TcpListener::bind(address) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => found.notes.push(format!(
                "{key}: no interface has the address {address} now; the daemon serves the others, and tries it again"
            )),
            Err(error) => {
                let problem = ApiError::conflict(format!("cannot listen on {address}: {error}"));
                found.faults.push(problem.about(key).hint("`ss -ltnp` names the process that does"));
            }
        }
    }
}

/// Checks that the address of the metrics can be listened on, where no daemon runs.
fn check_metrics(metrics: &Metrics, found: &mut Examination<'_>) {
    let Some(address) = metrics.listen.filter(|_| found.in_use) else { return };
    if let Err(error) = TcpListener::bind(address) {
        let problem = ApiError::conflict(format!("cannot listen on {address}: {error}"));
        found.faults.push(problem.about("metrics.listen").hint("`ss -ltnp` names the process that does"));
    }
}

/// Checks that the address of the page can be listened on, where no daemon runs, and that the file of its token has
/// one, if it is there.
fn check_page(page: &Page, places: &Places, found: &mut Examination<'_>) {
    let Some(address) = page.listen else { return };
    let path = page.token_path(&places.state);
    if path.exists() {
        found.note("page.token_file", Token::load(&path));
    }
    // `examine` has already reported an address that is not a loopback address.
    if found.in_use && address.ip().is_loopback() {
        found.note("page.listen", bind(address));
    }
}
