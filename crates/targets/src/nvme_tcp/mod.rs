//! The NVMe/TCP target: a namespace of a subsystem on another machine, attached as any host would.
//!
//! Each target is a host with an association of its own. A thread drives the admin queue ([`admin_thread`]),
//! and the drive's reactor drives the connection of the I/O queue ([`queue`]). The thread does all that waits
//! for the network in order: resolving a name, connecting, Identify, Keep Alive. The [`Target`] parks
//! commands, gives each a CID, and receives their results by completions of io_uring.
//!
//! Data is received in its final place. Payload of more than a few pages goes from the socket into the host's
//! memory, if its length is known at that time. The rest is copied once. All PDUs of a turn are in one send.
//!
//! The peer is hostile. Its PDUs are checked against the commands ([`in_flight`]), and a violation ends the
//! connection. No answer of a connection that was given up counts. No command is sent again before that
//! connection is reset, with all of its unsent bytes.

mod admin_thread;
mod ana;
mod authenticate;
mod chunk;
mod counters;
mod discover;
mod error;
mod fabrics;
mod fail_timer;
mod in_flight;
mod link;
mod multipath;
mod queue;
mod quiesce;
mod receive;
mod target;
mod transmit;
mod transport;

pub use counters::{NvmeTcpControl, NvmeTcpStatus};
pub use discover::discover;
pub use error::NvmeTcpError;
pub use multipath::{Multipath, PATHS_MAX, PathPolicy};
pub use target::Target as NvmeTcp;

use crate::remote::{LossNotice, Maintenance, PowerId, PreviousSession, Unflushed};
use sluice_nvme_auth::Terms;
use sluice_reactor::{Io, TaskId};
use sluice_tls::Keys;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use sluice_nvme_tcp::Digests;

/// Configuration of an NVMe/TCP target.
#[derive(Clone, Debug)]
pub struct NvmeTcpConfig {
    /// Host and port: `10.0.0.1:4420`, `[fd00::1]:4420`, `storage.example.org:4420`.
    pub address: String,
    /// NVMe Qualified Name of the subsystem.
    pub subnqn: String,
    pub nsid: u32,
    /// Expected properties of the namespace, so that opening needs no connection. The drive has no more than
    /// these.
    pub expected: Option<Expected>,
    /// NVMe Qualified Name of this host.
    pub hostnqn: String,
    /// Host Identifier, which is the same for all connections of a host.
    pub hostid: [u8; 16],
    pub digests: Digests,
    /// Keys and parameters for the authentication of the host, and of the controller in turn.
    pub terms: Option<Arc<Terms>>,
    /// TLS keys; connections are not encrypted without them.
    pub keys: Option<Arc<Keys>>,
    /// Time limit of the controller for a command, or to connect. After that the connection is given up.
    pub timeout: Duration,
    /// Keep Alive Timeout; zero for none.
    pub keep_alive: Duration,
    /// Time without a connection after which commands fail; until then they wait.
    pub fast_io_fail: Option<Duration>,
    /// Way in which the layers above are notified that acknowledged writes may be lost.
    pub loss_notice: LossNotice,
    /// Unflushed writes of an earlier daemon, if there may be some.
    pub previous_session: Option<PreviousSession>,
    /// Time without a connection after which reconnecting ends, and commands fail for good.
    pub ctrl_loss: Option<Duration>,
}

/// Expected properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Bytes, at least.
    pub size: u64,
    /// Bytes of a block, at most: 512 or 4096.
    pub block_size: u32,
}

impl NvmeTcpConfig {
    /// Creates the configuration of a namespace of a subsystem, with defaults.
    pub fn new(address: &str, subnqn: &str, hostnqn: &str, hostid: [u8; 16]) -> Self {
        Self {
            address: address.to_owned(),
            subnqn: subnqn.to_owned(),
            nsid: 1,
            expected: None,
            hostnqn: hostnqn.to_owned(),
            hostid,
            digests: Digests::NONE,
            terms: None,
            keys: None,
            timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(5),
            fast_io_fail: None,
            loss_notice: LossNotice::default(),
            previous_session: None,
            ctrl_loss: Some(Duration::from_secs(600)),
        }
    }
}

/// A namespace before it is given to a reactor: connected, or with expected properties.
#[derive(Debug)]
pub struct PreparedNvmeTcp {
    handle: admin_thread::NamespaceHandle,
    config: NvmeTcpConfig,
    /// Set if this is one of several paths.
    is_path: bool,
    control: NvmeTcpControl,
}

/// Losses of acknowledged writes of a namespace.
#[derive(Clone, Debug)]
pub struct UnreportedLosses(Arc<Unflushed>);

impl UnreportedLosses {
    /// Returns whether some host was not notified of a loss.
    pub fn are_there(&self) -> bool {
        self.0.is_lost()
    }
}

impl PreparedNvmeTcp {
    /// Connects. Blocks, for no longer than a few times the timeout.
    ///
    /// # Errors
    /// The error names the subsystem and gives advice. With [expected properties](NvmeTcpConfig::expected) an
    /// unreachable controller is no error: the connection is tried again.
    pub fn open(config: &NvmeTcpConfig) -> Result<Self, NvmeTcpError> {
        let mut opened = Self::open_all(vec![config.clone()], false)?;
        Ok(opened.remove(0))
    }

    /// Opens several paths to one namespace, as targets below [`Multipath`]. At least one path has to
    /// connect. Each path fails its commands as soon as its connection is lost, and reconnects for ever.
    ///
    /// # Errors
    /// No path connects, as for [`open`](Self::open); or the addresses lead to different namespaces.
    pub fn open_paths(configs: &[NvmeTcpConfig]) -> Result<Vec<Self>, NvmeTcpError> {
        let path = |config: &NvmeTcpConfig| NvmeTcpConfig {
            fast_io_fail: Some(Duration::ZERO),
            ctrl_loss: None,
            ..config.clone()
        };
        Self::open_all(configs.iter().map(path).collect(), true)
    }

    fn open_all(configs: Vec<NvmeTcpConfig>, is_path: bool) -> Result<Vec<Self>, NvmeTcpError> {
        let opened = admin_thread::open(&configs)?;
        let prepared = |(config, (handle, control))| Self { handle, config, is_path, control };
        Ok(configs.into_iter().zip(opened).map(prepared).collect())
    }

    /// Returns the bytes of the namespace.
    pub fn size(&self) -> u64 {
        self.handle.info.bytes()
    }

    /// Returns the controller's power identifier, if it reported one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.first.as_ref().and_then(|first| first.info.power)
    }

    /// Returns a handle on the target's counters, for the control plane.
    pub fn control(&self) -> NvmeTcpControl {
        self.control.clone()
    }

    /// Returns a handle on the controller, for the control plane.
    pub fn maintenance(&self) -> Maintenance {
        self.handle.maintenance.clone()
    }

    /// Returns the losses of the namespace, for the control plane.
    pub fn losses(&self) -> UnreportedLosses {
        UnreportedLosses(Arc::clone(&self.handle.unflushed))
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is the part of this layer's tokens above
    /// their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for two more files, or there is no memory.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<NvmeTcp> {
        let reactor = queue::ReactorHandle { io: io.clone(), task, token_prefix };
        NvmeTcp::new(self.handle, &self.config, self.is_path, reactor, self.control)
    }
}
