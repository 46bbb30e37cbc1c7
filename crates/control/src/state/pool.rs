//! Namespaces that hosts manage, in the format of the state file.

use serde::{Deserialize, Serialize};
use sluice_controller::{Attachment, Creation, KnownAs};
use sluice_spec::size::Size;

/// Namespaces that hosts created in a drive's pool, and attachments of the drive's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pooled {
    pub drive: String,
    /// Number of namespaces ever created. No two get the same number, and so no two get the same identifiers.
    pub numbers: u64,
    /// Namespaces in the order of their NSIDs.
    pub created: Vec<Created>,
    /// Attachments that differ from the initial one.
    pub attached: Vec<Attached>,
    /// Files without a namespace, or whose namespace is not stored yet. A sweep removes them where they
    /// exist.
    pub leaving: Vec<String>,
}

/// A namespace that a host has created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Created {
    pub nsid: u32,
    pub number: u64,
    /// Name of the file in the pool's folder; none if the pool is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    pub size: Size,
    /// Block size at the creation, bytes.
    pub block_size: u32,
    pub shared: bool,
    pub ana_group: u32,
    /// Random identity of the file. None if an older daemon, which assigned none, created the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// Hosts that a namespace is attached to: all hosts except those listed, or only the listed ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    pub nsid: u32,
    pub to_others: bool,
    /// `socket 1`, or the NQN of a host on the network.
    pub listed: Vec<String>,
}

impl Pooled {
    pub fn namespace(&self, nsid: u32) -> Option<&Created> {
        self.created.iter().find(|it| it.nsid == nsid)
    }

    pub fn attachment(&self, nsid: u32) -> Option<Attachment> {
        self.attached.iter().find(|it| it.nsid == nsid).map(Attached::attachment)
    }

    /// Adds the file of a namespace that is not stored yet.
    pub fn expect(&mut self, file: &str) {
        self.leaving.push(file.to_owned());
    }

    /// Adds a namespace, whose file is no longer to be removed.
    pub fn add(&mut self, created: Created) {
        self.numbers = self.numbers.max(created.number);
        self.leaving.retain(|file| Some(file) != created.file.as_ref());
        self.created.push(created);
        self.created.sort_by_key(|it| it.nsid);
    }

    /// Removes namespaces; their files are to be removed.
    pub fn remove(&mut self, nsids: &[u32]) {
        let gone = self.created.extract_if(.., |it| nsids.contains(&it.nsid));
        self.leaving.extend(gone.filter_map(|it| it.file));
        self.attached.retain(|it| !nsids.contains(&it.nsid));
    }

    pub fn attach(&mut self, nsid: u32, attachment: &Attachment) {
        let Attachment { to_others, ref listed } = *attachment;
        self.attached.retain(|it| it.nsid != nsid);
        if !listed.is_empty() {
            let listed = listed.iter().map(ToString::to_string).collect();
            self.attached.push(Attached { nsid, to_others, listed });
        }
    }
}

impl Created {
    pub fn of(creation: Creation, number: u64, file: Option<String>) -> Self {
        let Creation { nsid, block_size, shared, ana_group, .. } = creation;
        let (size, identity) = (Size(creation.bytes()), None);
        Self { nsid, number, file, size, block_size, shared, ana_group, identity }
    }
}

impl Attached {
    fn attachment(&self) -> Attachment {
        let listed = self.listed.iter().map(|name| KnownAs::parse(name)).collect();
        Attachment { to_others: self.to_others, listed }
    }
}
