//! What a drive's acknowledged writes depend on until they are flushed.

use super::{DriveSpec, FunctionSpec, LayerSpec, NamespaceSpec, Provenance, TargetKind, UifSpec, Way};

impl DriveSpec {
    /// True if acknowledged writes are lost only when this machine loses power or is restarted: a daemon that is killed
    /// leaves them in the page cache, or in a device.
    pub(crate) fn outlives_daemon(&self) -> bool {
        let is_pool_kept = self.pool.as_ref().is_none_or(|pool| is_kept(pool.target));
        is_pool_kept && self.numbered().all(|(_, namespace)| outlives_daemon(namespace))
    }
}

fn is_kept(target: TargetKind) -> bool {
    matches!(target, TargetKind::Null | TargetKind::File)
}

fn outlives_daemon(namespace: &NamespaceSpec) -> bool {
    let keeps = |function: &FunctionSpec| {
        let is_known = match function {
            FunctionSpec::Uif(uif) => keeps_nothing(uif),
            _ => true,
        };
        is_known && function.layers().iter().map(LayerSpec::as_namespace).all(|it| outlives_daemon(&it))
    };
    let own_paths = namespace.paths.iter().map(|path| match path.way(namespace) {
        Ok(Way::Own(own)) => outlives_daemon(&own),
        way => way.is_ok(),
    });
    is_kept(namespace.target)
        && namespace.functions.iter().all(keeps)
        && own_paths.into_iter().all(|kept| kept)
}

/// The functions that come with Sluice acknowledge a write when it is below them. Of others nothing is known.
fn keeps_nothing(uif: &UifSpec) -> bool {
    matches!(uif.provenance(), Ok(Provenance::Here(_) | Provenance::Own(_)))
}
