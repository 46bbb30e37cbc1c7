//! Namespaces of subsystems on the network: connected on the calling thread, over one path or several, and
//! assembled on their reactor.

use super::dhchap;
use super::drive::in_words;
use super::namespace::Site;
use super::power::{Losses, in_hexadecimal};
use super::target::peer;
use sluice_command::{Layer, NodeId, StackBuilder};
use sluice_control::drives::{DevicePlace, DeviceView};
use sluice_controller::Subsystem;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::host_name::HostName;
use sluice_spec::{DigestName, NvmeTcpSpec, PolicyName};
use sluice_targets::{
    Digests, Expected, Maintenance, Multipath, NvmeTcpConfig, NvmeTcpControl, PathPolicy, PowerId,
    PreparedNvmeTcp, UnreportedLosses,
};
use sluice_tls::Keys;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A remote namespace on its way to its reactor.
#[derive(Debug)]
pub(super) enum PreparedRemoteTarget {
    One(Box<PreparedNvmeTcp>),
    Several {
        paths: Vec<PreparedNvmeTcp>,
        policy: PathPolicy,
        /// Time limit for commands that wait while there is no path.
        limit: Option<Duration>,
    },
}

/// Controls of a remote namespace: each path, with the subsystem's name and place.
#[derive(Debug)]
pub(crate) struct RemoteControl {
    paths: Vec<(NvmeTcpControl, DevicePlace)>,
    /// Remote namespace, with the power identifier that its controller returned.
    peer: (String, Option<PowerId>),
    losses: UnreportedLosses,
    maintenance: Vec<Maintenance>,
}

impl PreparedRemoteTarget {
    /// Connects, for a namespace with blocks of `block_size` bytes. Blocks the calling thread.
    pub(super) fn open(
        spec: &NvmeTcpSpec,
        block_size: u32,
        losses: Losses<'_>,
    ) -> Result<(Self, RemoteControl), ApiError> {
        let config = |address| config(spec, address, block_size, losses);
        let place = |address: &str| DevicePlace {
            device: format!("{} at {address}", spec.subnqn),
            namespace: spec.namespace,
            first_block: 0,
        };
        let peer = peer(&spec.subnqn, spec.namespace);
        let in_words = |error: sluice_targets::NvmeTcpError| match error.is_unreachable() {
            true => ApiError::new(Kind::Unreachable, error.to_string()),
            false => ApiError::internal(error.to_string()),
        };
        if spec.addresses.is_empty() {
            let prepared = PreparedNvmeTcp::open(&config(&spec.address)?).map_err(in_words)?;
            let paths = vec![(prepared.control(), place(&spec.address))];
            let (peer, losses) = ((peer, prepared.power()), prepared.losses());
            let maintenance = vec![prepared.maintenance()];
            let control = RemoteControl { paths, peer, losses, maintenance };
            return Ok((Self::One(Box::new(prepared)), control));
        }
        let configs = spec.addresses.iter().map(|address| config(address));
        let configs: Vec<NvmeTcpConfig> = configs.collect::<Result<_, ApiError>>()?;
        let paths = PreparedNvmeTcp::open_paths(&configs).map_err(in_words)?;
        let places = spec.addresses.iter().map(|address| place(address));
        let power = paths.iter().find_map(PreparedNvmeTcp::power);
        let controls = paths.iter().map(PreparedNvmeTcp::control).zip(places).collect();
        let losses = paths[0].losses();
        let maintenance = paths.iter().map(PreparedNvmeTcp::maintenance).collect();
        let control = RemoteControl { paths: controls, peer: (peer, power), losses, maintenance };
        let policy = match spec.policy {
            PolicyName::RoundRobin => PathPolicy::RoundRobin,
            PolicyName::QueueDepth => PathPolicy::QueueDepth,
        };
        // The shorter limit applies.
        let limit = [fast_io_fail(spec), ctrl_loss(spec)].into_iter().flatten().min();
        Ok((Self::Several { paths, policy, limit }, control))
    }

    /// Adds the target to a stack, on the thread of its reactor.
    pub(super) fn add(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<NodeId, ApiError> {
        match self {
            Self::One(prepared) => add_path(*prepared, stack, at),
            Self::Several { paths, policy, limit } => {
                let controls = paths.iter().map(PreparedNvmeTcp::control).collect();
                let mut below = Vec::with_capacity(paths.len());
                for prepared in paths {
                    let path = add_path(prepared, stack, at)?;
                    stack.fix(path);
                    below.push(path);
                }
                let multipath = Box::new(Multipath::new(policy, controls, limit));
                stack.add(multipath, &below).map_err(|error| in_words(&error))
            }
        }
    }
}

fn add_path(prepared: PreparedNvmeTcp, stack: &mut StackBuilder, at: &Site<'_>) -> Result<NodeId, ApiError> {
    let token_prefix = Subsystem::token_prefix(at.nsid, stack.next_id());
    let target: Box<dyn Layer> = match prepared.build(at.task, at.io, token_prefix) {
        Ok(target) => Box::new(target),
        Err(error) => {
            return Err(ApiError::internal(format!("the reactor cannot take the connection: {error}"))
                .hint("each takes two of the reactor's places and a few descriptors (ulimit -n)"));
        }
    };
    stack.add(target, &[]).map_err(|error| in_words(&error))
}

impl RemoteControl {
    /// Returns the state of each path.
    pub(super) fn devices(&self, nsid: u32) -> Vec<DeviceView> {
        let view = |(control, place): &(NvmeTcpControl, DevicePlace)| {
            DeviceView::over_tcp(nsid, place, control.status())
        };
        self.paths.iter().map(view).collect()
    }

    /// Returns the controller of each path.
    pub(super) fn maintenance(&self) -> Vec<Maintenance> {
        self.maintenance.clone()
    }

    /// Returns whether some host was not notified of a loss of acknowledged writes.
    pub(super) fn has_lost(&self) -> bool {
        self.losses.are_there()
    }

    /// Returns the remote namespace, with its power identifier.
    pub(super) fn peer(&self) -> (String, Option<String>) {
        (self.peer.0.clone(), self.peer.1.map(in_hexadecimal))
    }
}

fn config(
    spec: &NvmeTcpSpec,
    address: &str,
    block_size: u32,
    losses: Losses<'_>,
) -> Result<NvmeTcpConfig, ApiError> {
    let host = HostName::of(spec.hostnqn.as_deref());
    let has = |name| spec.digests.contains(&name);
    Ok(NvmeTcpConfig {
        nsid: spec.namespace,
        expected: spec.size.map(|size| Expected { size: size.0, block_size }),
        terms: spec.dhchap.as_ref().map(dhchap::terms).transpose()?,
        keys: tls_keys(spec.tls_keys.as_deref())?,
        digests: Digests { header: has(DigestName::Header), data: has(DigestName::Data) },
        timeout: seconds(spec.timeout_s),
        keep_alive: seconds(spec.keep_alive_s),
        fast_io_fail: fast_io_fail(spec),
        ctrl_loss: ctrl_loss(spec),
        loss_notice: losses.notice,
        previous_session: losses.former(&peer(&spec.subnqn, spec.namespace)),
        ..NvmeTcpConfig::new(address, &spec.subnqn, &host.nqn, host.id)
    })
}

/// Reads the keys of a file, if one is named.
pub fn tls_keys(path: Option<&Path>) -> Result<Option<Arc<Keys>>, ApiError> {
    let keys = path.map(Keys::read).transpose();
    let hint = "each line has a key that `nvme gen-tls-key` made, and before it the NQN of its host if it is for one";
    Ok(keys.map_err(|error| ApiError::invalid(error.to_string()).hint(hint))?.map(Arc::new))
}

fn fast_io_fail(spec: &NvmeTcpSpec) -> Option<Duration> {
    spec.fast_io_fail_s.map(seconds)
}

fn ctrl_loss(spec: &NvmeTcpSpec) -> Option<Duration> {
    (spec.ctrl_loss_s > 0).then(|| seconds(spec.ctrl_loss_s))
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}
