//! Events that a drive's acknowledged writes survive before they are flushed.

use super::{DriveSpec, FunctionSpec, LayerSpec, NamespaceSpec, TargetKind, Way};

impl DriveSpec {
    /// Returns whether acknowledged writes are lost only when this machine loses power or is restarted. A
    /// killed daemon leaves such writes in the page cache, or in a device.
    pub fn outlives_daemon(&self) -> bool {
        let is_pool_kept = self.pool.as_ref().is_none_or(|pool| is_kept(pool.target));
        is_pool_kept && self.numbered().all(|(_, namespace)| all_parts(namespace, &outlives_daemon))
    }

    /// Returns whether another daemon can continue the drive under its hosts after the death of this one: no data and
    /// no acknowledged write is in the daemon alone. Controllers on the network keep what they have acknowledged.
    pub fn can_be_continued(&self) -> bool {
        let is_pool_kept = self.pool.as_ref().is_none_or(|pool| is_kept(pool.target));
        is_pool_kept && self.numbered().all(|(_, namespace)| all_parts(namespace, &is_continued))
    }

    /// Returns whether some of its data is on other NVMe controllers, which may lose power by themselves.
    pub fn has_peers(&self) -> bool {
        self.numbered().any(|(_, namespace)| has_peers(namespace))
    }
}

fn has_peers(namespace: &NamespaceSpec) -> bool {
    let mut layers = namespace.functions.iter().flat_map(FunctionSpec::layers).map(LayerSpec::as_namespace);
    let mut paths = namespace.paths.iter().filter_map(|path| path.way(namespace).ok());
    matches!(namespace.target, TargetKind::Nvme | TargetKind::NvmeTcp)
        || layers.any(|layer| has_peers(&layer))
        || paths.any(|way| matches!(way, Way::Own(own) if has_peers(&own)))
}

fn is_kept(target: TargetKind) -> bool {
    matches!(target, TargetKind::Null | TargetKind::File)
}

/// Returns whether the data is on a PCI device. Such a device keeps its cache when its driver ends, and loses
/// the cache with this machine.
fn is_on_device(namespace: &NamespaceSpec) -> bool {
    let is_device = namespace.nvme.as_ref().is_some_and(|nvme| nvme.pci.is_some());
    namespace.target == TargetKind::Nvme && is_device
}

fn outlives_daemon(namespace: &NamespaceSpec) -> bool {
    // Allocations of a thin volume are durable before their writes are acknowledged.
    is_kept(namespace.target) || is_on_device(namespace) || namespace.target == TargetKind::Thin
}

fn is_continued(namespace: &NamespaceSpec) -> bool {
    is_kept(namespace.target) || is_on_device(namespace) || namespace.target == TargetKind::NvmeTcp
}

/// Returns whether `is_so` for the targets of all layers, and no function holds writes.
fn all_parts(namespace: &NamespaceSpec, is_so: &impl Fn(&NamespaceSpec) -> bool) -> bool {
    let keeps = |function: &FunctionSpec| {
        !function.shape().holds_writes
            && function.layers().iter().map(LayerSpec::as_namespace).all(|it| all_parts(&it, is_so))
    };
    let own_paths = namespace.paths.iter().map(|path| match path.way(namespace) {
        Ok(Way::Own(own)) => all_parts(&own, is_so),
        way => way.is_ok(),
    });
    is_so(namespace) && namespace.functions.iter().all(keeps) && own_paths.into_iter().all(|kept| kept)
}
