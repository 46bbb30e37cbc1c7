//! The power identifier of a drive, which proves to hosts that it has lost no acknowledged write.

use crate::paths::boot_id;
use crate::spec::DriveSpec;
use crate::state::Unflushed;
use std::hash::{BuildHasher, RandomState};

/// What is stored before a drive is opened. It keeps its power identifier if it was synced at its end; or if nothing but
/// a loss of this machine's power could lose a write, and there was none.
pub(super) fn begin(spec: &DriveSpec, before: Option<&Unflushed>) -> Unflushed {
    let boot = boot_id();
    let has_kept =
        |before: &&Unflushed| before.clean || boot.is_some() && before.boot == boot && spec.outlives_daemon();
    let power = before.filter(has_kept).and_then(|before| before.power.clone());
    let left = before.filter(|before| !before.clean);
    Unflushed {
        power: power.or_else(|| Some(random())),
        peers: left.map(|left| left.peers.clone()).unwrap_or_default(),
        clean: false,
        boot,
    }
}

fn random() -> String {
    let half = || RandomState::new().hash_one("a power identifier");
    format!("{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_where_nothing_can_be_lost() {
        let file: DriveSpec = serde_json::from_str(
            r#"{"name":"a","namespaces":[{"target":"file","path":"/a","size":"1MiB"}]}"#,
        )
        .expect("a drive");
        let memory: DriveSpec =
            serde_json::from_str(r#"{"name":"a","namespaces":[{"target":"memory","size":"1MiB"}]}"#)
                .expect("a drive");
        for (spec, outlives_daemon) in [(file, true), (memory, false)] {
            let first = begin(&spec, None);
            assert!(first.power.is_some() && !first.clean);
            assert_ne!(begin(&spec, None).power, first.power, "each drive has its own");
            let clean = Unflushed { clean: true, boot: Some("before".into()), ..first.clone() };
            assert_eq!(begin(&spec, Some(&clean)).power, first.power);
            let cut = Unflushed { boot: Some("before".into()), ..first.clone() };
            assert_ne!(begin(&spec, Some(&cut)).power, first.power);
            let killed = begin(&spec, Some(&first)).power;
            assert_eq!(killed == first.power, outlives_daemon);
        }
    }
}
