//! The NVMe/TCP target: a namespace of a subsystem on another machine, attached as any host would.
//!
//! Each target is a host with an association of its own: an admin queue, which a thread drives (the
//! [`admin_thread`]), and an I/O queue, which is a connection that the drive's reactor drives ([`queue`]). Whatever
//! waits for the network in order (resolving a name, connecting, Identify, keep-alive) is the keeper's. The
//! [`Target`] parks commands, gives each a command identifier, and finds out by completions of io_uring what
//! came of them.
//!
//! Data is received where it ends: payload of more than a few pages goes from the socket into the host's
//! memory, as far as its length is known when the kernel is asked; the rest is copied once. All that a turn
//! has to send is one send.
//!
//! The peer is hostile. What it sends is checked against what it was asked for ([`in_flight`]); what does not fit
//! ends the connection. No answer of a connection that was given up is heard, and no command goes out again
//! before that connection is reset, with everything that it had not sent yet.

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

use crate::remote::{LossNotice, PowerId, PreviousSession};
use sluice_nvme_auth::Terms;
use sluice_reactor::{Io, TaskId};
use sluice_tls::Keys;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use sluice_nvme_tcp::Digests;

/// An NVMe/TCP target, as configured.
#[derive(Clone, Debug)]
pub struct NvmeTcpConfig {
    /// Host and port: `10.0.0.1:4420`, `[fd00::1]:4420`, `storage.example.org:4420`.
    pub address: String,
    /// NVMe Qualified Name of the subsystem.
    pub subnqn: String,
    pub nsid: u32,
    /// What is known beforehand, so that it need not be connected to when it is opened. It is taken for no more.
    pub expected: Option<Expected>,
    /// What this host calls itself.
    pub hostnqn: String,
    /// Host Identifier; one host has one, whatever it connects to.
    pub hostid: [u8; 16],
    pub digests: Digests,
    /// With what it proves who it is, and the controller in turn.
    pub terms: Option<Arc<Terms>>,
    /// What connections are encrypted with; they are not without it.
    pub keys: Option<Arc<Keys>>,
    /// How long the controller may take for a command, or to connect, before the connection is given up.
    pub timeout: Duration,
    /// Keep Alive Timeout; zero for none.
    pub keep_alive: Duration,
    /// Without a connection for so long, commands fail; they wait until then.
    pub fast_io_fail: Option<Duration>,
    /// How the layers above are told that acknowledged writes may be lost.
    pub loss_notice: LossNotice,
    /// An earlier daemon may have left writes that were not flushed.
    pub previous_session: Option<PreviousSession>,
    /// Without a connection for so long, nobody tries to connect any more, and commands fail for good.
    pub ctrl_loss: Option<Duration>,
}

/// What a namespace is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Bytes, at least.
    pub size: u64,
    /// Bytes of a block, at most: 512 or 4096.
    pub block_size: u32,
}

impl NvmeTcpConfig {
    /// A namespace of a subsystem, with nothing special about it.
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

/// A namespace on its way to its reactor: connected, or one of which it is known what it will be.
#[derive(Debug)]
pub struct NvmeTcpSeed {
    handle: admin_thread::NamespaceHandle,
    config: NvmeTcpConfig,
    /// One of several paths.
    is_path: bool,
    control: NvmeTcpControl,
}

impl NvmeTcpSeed {
    /// Connects. Blocks, for no longer than a few times the timeout.
    ///
    /// # Errors
    /// In words that name the subsystem and say what to do. That it cannot be connected to is none, if it is known
    /// [what to expect](NvmeTcpConfig::expected): that is tried again.
    pub fn open(config: &NvmeTcpConfig) -> Result<Self, NvmeTcpError> {
        let mut opened = Self::open_all(vec![config.clone()], false)?;
        Ok(opened.remove(0))
    }

    /// The same of several paths to one namespace, of which one has to be connected to, for [`Multipath`] to
    /// stand on. Each fails its commands as soon as its connection is lost, and is tried again for ever.
    ///
    /// # Errors
    /// As above; or what is at one of the addresses is something else than at the others.
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
        let seed = |(config, (handle, control))| Self { handle, config, is_path, control };
        Ok(configs.into_iter().zip(opened).map(seed).collect())
    }

    /// Bytes of the namespace.
    pub fn size(&self) -> u64 {
        self.handle.info.bytes()
    }

    /// The controller's power identifier, if it gave one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.first.as_ref().and_then(|first| first.info.power)
    }

    /// What the control side keeps, to see how the target fares.
    pub fn control(&self) -> NvmeTcpControl {
        self.control.clone()
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is what the tokens of this layer have
    /// beside their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for two more files, or there is no memory.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<NvmeTcp> {
        let reactor = queue::ReactorHandle { io: io.clone(), task, token_prefix };
        NvmeTcp::new(self.handle, &self.config, self.is_path, reactor, self.control)
    }
}
