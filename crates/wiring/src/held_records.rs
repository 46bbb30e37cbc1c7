//! Records of a drive at the holder, which outlives the daemon.

use super::drive::WiredDrive;
use super::hand_over::Parts;
use sluice_control::drives::Running;
use sluice_frontend::record::HandOverError;
use sluice_frontend::{Drive, RecordSink};
use sluice_frontend_vfio_user::Socket;
use sluice_holder::{Holder, Keeping};
use sluice_spec::error::ApiError;
use std::os::fd::AsFd;

/// Time for which answers wait while no record can be made: during a reset, for example.
const PATIENCE_NS: u64 = 100_000_000;

impl WiredDrive {
    /// Has the records of the drive kept from now on, if there is a holder.
    pub(super) fn keep(&self) -> Result<(), ApiError> {
        let Some(holder) = &self.holder else { return Ok(()) };
        let Some(sink) = HeldRecords::connect(holder, &self.name, self.reactor().unwrap_or(0)) else {
            return Ok(());
        };
        self.execute(move |drive, now_ns| {
            Socket::keep(drive, now_ns);
            drive.keep(Box::new(sink), now_ns)
        })
        .map(drop)
    }
}

/// Keeps the records of one drive.
#[derive(Debug)]
pub(super) struct HeldRecords {
    drive: String,
    reactor: usize,
    keeping: Keeping,
    /// Time since which no record could be made.
    since_ns: Option<u64>,
}

impl HeldRecords {
    /// Connects to the holder. A drive is served without one, too.
    pub(super) fn connect(holder: &Holder, drive: &str, reactor: usize) -> Option<Self> {
        match holder.keep(drive) {
            Ok(keeping) => Some(Self { drive: drive.to_owned(), reactor, keeping, since_ns: None }),
            Err(error) => {
                tracing::warn!(drive, "its hosts are lost if the daemon dies: {error}");
                None
            }
        }
    }

    fn put(&self, drive: &Drive, now_ns: u64) -> Result<(), HandOverError> {
        let record = Parts::of_kept(drive, now_ns)?.pack(self.reactor, None);
        let fds: Vec<_> = record.fds.iter().map(AsFd::as_fd).collect();
        self.keeping
            .put(&record.bytes, &fds)
            .map_err(|error| HandOverError::Io(std::io::Error::other(error.to_string())))
    }
}

impl RecordSink for HeldRecords {
    fn keep(&mut self, drive: &mut Drive, now_ns: u64) -> bool {
        match self.put(drive, now_ns) {
            Ok(()) => {
                self.since_ns = None;
                Socket::kept(drive, now_ns);
                true
            }
            Err(HandOverError::Cannot(_)) => {
                let since_ns = *self.since_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(since_ns) >= PATIENCE_NS {
                    Socket::kept(drive, now_ns);
                }
                true
            }
            Err(error) => {
                let drive_name = &self.drive;
                tracing::warn!(drive = drive_name, "its hosts are lost if the daemon dies: {error}");
                Socket::stop_keeping(drive, now_ns);
                false
            }
        }
    }
}

/// End of the drive, which no daemon continues then.
impl Drop for HeldRecords {
    fn drop(&mut self) {
        self.keeping.release();
    }
}
