//! Recovery after a dead daemon: the holder has its sockets, and the memory of its hosts.

use crate::daemon::Prepared;
use crate::orphans;
use sluice_control::drives::{Drives, HandedOver};
use sluice_handover::locks;
use sluice_holder::{HeldDrive, Holder};
use sluice_spec::error::ApiError;
use sluice_spec::words::count;
use sluice_wiring::reactor_of_record;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Time for the I/O of the dead daemon to end. Its files stay locked until then.
const IO_LIMIT: Duration = Duration::from_secs(10);

/// Time for controllers on the network to end the connections of the dead daemon. Virtual machines wait.
const PEERS_LIMIT: Duration = Duration::from_secs(3);

/// Time for the holder to close the descriptors of a drive.
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// Interval between two attempts to reach a holder that is gone.
const RETRY: Duration = Duration::from_secs(1);

/// Has the records of the drives kept again when the holder was restarted.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn watch(holder: Option<Holder>, drives: &Arc<Drives>) -> Result<(), ApiError> {
    let Some(holder) = holder else { return Ok(()) };
    let drives = Arc::downgrade(drives);
    let watch = move || {
        loop {
            let ended = holder.wait_for_end();
            if ended.is_ok() && drives.strong_count() > 0 {
                tracing::warn!(
                    "the holder is gone: until it is there again, hosts are lost if the daemon dies"
                );
            }
            while holder.check().is_err() {
                std::thread::sleep(RETRY);
            }
            let Some(drives) = drives.upgrade() else { return };
            drives.keep_again();
            tracing::info!("the holder is there, and keeps the drives");
        }
    };
    let started = std::thread::Builder::new().name("holder".to_owned()).spawn(watch);
    started.map(drop).map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
}

/// Opens the drives that a dead daemon has left. They are held until they go on.
pub(crate) fn recover(prepared: &mut Prepared) {
    let Some(holder) = prepared.holder.clone() else { return };
    let left = match holder.take() {
        Ok(left) => left,
        Err(error) => return tracing::warn!("no host of an earlier daemon is continued: {error}"),
    };
    if left.is_empty() {
        return;
    }
    let drives = count(left.len(), "drive");
    tracing::warn!("the last daemon has died; continuing {drives} that it left");
    locks::wait_until(Instant::now() + IO_LIMIT);
    let is_left = |name: &String| left.iter().any(|it| it.name == *name);
    let remote = prepared.specs.iter().filter(|(spec, _)| is_left(&spec.name));
    let addresses: Vec<String> = remote.flat_map(|(spec, _)| spec.remote_addresses()).collect();
    if !orphans::wait_for_end(&addresses, Instant::now() + PEERS_LIMIT) {
        tracing::warn!("connections of the last daemon have not ended: {}", addresses.join(", "));
    }
    for HeldDrive { name, bytes, fds } in left {
        let reactor = reactor_of_record(&bytes).unwrap_or_default();
        let handed = HandedOver { bytes, fds, is_left: true };
        prepared.inbox.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), handed);
        let Err(problem) = prepared.drives.recover(&mut prepared.specs, &name, reactor) else { continue };
        tracing::error!("drive {name} is not continued, and its hosts are lost: {}", problem.in_one_line());
        prepared.inbox.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        // Its sockets stay open, and their paths taken, until the holder has closed them.
        if let Ok(keeping) = holder.keep(&name) {
            keeping.release();
            std::thread::sleep(CLOSE_PAUSE);
        }
    }
}
