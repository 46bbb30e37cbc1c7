//! In-band authentication, DH-HMAC-CHAP, as a user describes it.

use super::Fault;
use serde::{Deserialize, Serialize};
use std::path::Path;
use utoipa::ToSchema;

/// The keys that a host and a subsystem share, and how they use them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DhchapSpec {
    /// Where the key is with which the host proves who it is: a file that `nvme gen-dhchap-key` made, by its
    /// absolute path, or a credential of systemd's, as `credential:NAME`.
    pub key: String,
    /// Where the key is with which the controller proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_key: Option<String>,
    /// Hash functions, what is liked best first; all if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<HashName>,
    /// Diffie-Hellman groups, what is liked best first; all if not given.
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
    /// The keys are all there is: who records a connection can try keys out on it.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

impl DhchapSpec {
    /// What a key begins with that is a credential.
    pub const CREDENTIAL: &str = "credential:";

    /// A key of it is in a credential.
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
