//! In-band authentication, DH-HMAC-CHAP, as a user describes it.

use super::Fault;
use serde::{Deserialize, Serialize};
use std::path::Path;
use utoipa::ToSchema;

/// Keys that a host and a subsystem share, and the methods that use them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DhchapSpec {
    /// Place of the key with which the host proves its identity: the absolute path of a file, or
    /// `credential:NAME` for a credential of systemd. The file is made by `nvme gen-dhchap-key`.
    pub key: String,
    /// Place of the key with which the controller proves its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_key: Option<String>,
    /// Hash functions in the order of preference; all if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<HashName>,
    /// Diffie-Hellman groups in the order of preference; all if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dh_groups: Vec<GroupName>,
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HashName {
    Sha256,
    Sha384,
    Sha512,
}

/// A group of RFC 7919, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GroupName {
    /// No group: an attacker with a recorded connection can test keys against it.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl DhchapSpec {
    /// Prefix of a key that is a credential of systemd.
    pub const CREDENTIAL: &str = "credential:";

    /// Returns whether one of its keys is a credential.
    pub fn uses_credential(&self) -> bool {
        [Some(&self.key), self.controller_key.as_ref()]
            .into_iter()
            .flatten()
            .any(|key| key.starts_with(Self::CREDENTIAL))
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        check_key("key", &self.key)?;
        let Some(controller_key) = &self.controller_key else { return Ok(()) };
        check_key("controller_key", controller_key)?;
        match *controller_key == self.key {
            true => Err(Fault::at_key("controller_key", "it is the host's key").hint(
                "make another with `nvme gen-dhchap-key`: who knows one must not be able to play both",
            )),
            false => Ok(()),
        }
    }
}

fn check_key(at: &'static str, key: &str) -> Result<(), Fault> {
    match key.starts_with(DhchapSpec::CREDENTIAL) || Path::new(key).is_absolute() {
        true => Ok(()),
        false => Err(Fault::at_key(at, format!("`{}` is no absolute path", key.escape_debug())).hint(
            "say where the key is, such as /etc/sluice/host.key or credential:host; not the key itself",
        )),
    }
}
