//! The namespaces that hosts manage, as the state file has them.

use serde::{Deserialize, Serialize};
use sluice_controller::{Attachment, Creation, KnownAs};
use sluice_spec::size::Size;

/// What hosts have made of a drive's pool, and to whom its namespaces are attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pooled {
    pub drive: String,
    /// How many namespaces were ever created: no two have the same number, nor so the same identifiers.
    pub numbers: u64,
    /// By NSID.
    pub created: Vec<Created>,
    /// Of namespaces that are not attached as they were at first.
    pub attached: Vec<Attached>,
    /// Files that no namespace has, or not yet: what is found of them goes.
    pub leaving: Vec<String>,
}

/// A namespace that a host has created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Created {
    pub nsid: u32,
    pub number: u64,
    /// Its name in the pool's folder; none in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    pub size: Size,
    /// That it was created with, bytes.
    pub block_size: u32,
    pub shared: bool,
    pub ana_group: u32,
    /// Random, of its file. None under a daemon that did not give one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// To whom a namespace is attached: to all but those that are listed, or to those alone.
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

    /// Has another file, for a namespace that is still to be stored.
    pub fn expect(&mut self, file: &str) {
        self.leaving.push(file.to_owned());
    }

    /// Has another namespace, which stays.
    pub fn add(&mut self, created: Created) {
        self.numbers = self.numbers.max(created.number);
        self.leaving.retain(|file| Some(file) != created.file.as_ref());
        self.created.push(created);
        self.created.sort_by_key(|it| it.nsid);
    }

    /// Does not have these any more.
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
