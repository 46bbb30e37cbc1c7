//! Keys for in-band authentication, read from the places that a description names.

use sluice_crypt::{Given, Source};
use sluice_nvme_auth::{Group, Hash, Key, Offer, Terms};
use sluice_spec::error::ApiError;
use sluice_spec::{DhchapSpec, GroupName, HashName};
use std::sync::Arc;

/// Reads the keys.
///
/// # Errors
/// A key is missing or invalid, or both keys are the same. The message names their place.
pub(super) fn terms(spec: &DhchapSpec) -> Result<Arc<Terms>, ApiError> {
    let host = read(&spec.key)?;
    let controller = spec.controller_key.as_deref().map(read).transpose()?;
    if controller.as_ref().is_some_and(|key| key.is_like(&host)) {
        return Err(ApiError::invalid(format!(
            "{} and {} are the same key",
            spec.key,
            spec.controller_key.as_deref().unwrap_or_default()
        ))
        .hint("make another with `nvme gen-dhchap-key`: who knows one must not be able to play both"));
    }
    Ok(Arc::new(Terms { host, controller, offer: offer(spec) }))
}

fn read(key: &str) -> Result<Key, ApiError> {
    let source = match key.strip_prefix(DhchapSpec::CREDENTIAL) {
        Some(name) => Source::Credential(name.to_owned()),
        None => Source::File(key.into()),
    };
    let secret = source.read(&Given::default()).map_err(ApiError::invalid)?;
    Key::parse(&secret).map_err(|error| {
        ApiError::invalid(format!("{key}: {error}")).hint("make one with `nvme gen-dhchap-key > FILE`")
    })
}

fn offer(spec: &DhchapSpec) -> Offer {
    let mut offer = Offer::default();
    if !spec.hashes.is_empty() {
        offer.hashes = spec.hashes.iter().copied().map(hash).collect();
    }
    if !spec.dh_groups.is_empty() {
        offer.groups = spec.dh_groups.iter().copied().map(group).collect();
    }
    offer
}

fn hash(name: HashName) -> Hash {
    match name {
        HashName::Sha256 => Hash::Sha256,
        HashName::Sha384 => Hash::Sha384,
        HashName::Sha512 => Hash::Sha512,
    }
}

fn group(name: GroupName) -> Group {
    match name {
        GroupName::Null => Group::Null,
        GroupName::Ffdhe2048 => Group::Ffdhe2048,
        GroupName::Ffdhe3072 => Group::Ffdhe3072,
        GroupName::Ffdhe4096 => Group::Ffdhe4096,
        GroupName::Ffdhe6144 => Group::Ffdhe6144,
        GroupName::Ffdhe8192 => Group::Ffdhe8192,
    }
}
