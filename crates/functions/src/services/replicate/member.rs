//! Members of a set: the checks of options and layers.

use super::CHUNK_BYTES;
use sluice_redundancy::{Config, MEMBERS_MAX, Members, Mirror, region_bytes};
use sluice_uif::{Below, Options};

/// Bytes that are copied in a second while the host writes, unless an option sets another rate.
const RATE: u64 = 64 << 20;

/// Role of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Member 0 is the drive, and the other one a copy that is never read.
    Copy,
    /// All members are equal: a read goes to any that has the data.
    Equals,
}

// Layers pass the number on as it is.
const _: () = assert!(sluice_redundancy::UNSEEN == sluice_command::Storage::UNSEEN.id);

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Copy => "replicate",
            Self::Equals => "mirror",
        }
    }

    /// Returns the number of members among these layers; the log is the last layer.
    pub(super) fn members(self, layers: &[Below]) -> Result<usize, String> {
        let given = layers.len().max(1) - 1;
        match (self, layers.len()) {
            (Self::Copy, 3) => Ok(2),
            (Self::Copy, _) => Err(format!("replicate needs the layers [secondary, log], and has {given}")),
            (Self::Equals, 3..) if layers.len() - 1 <= MEMBERS_MAX => Ok(layers.len() - 1),
            (Self::Equals, _) => Err(format!(
                "mirror needs the layers [member 1, ..., log], up to {MEMBERS_MAX} with the log, and has {given}"
            )),
        }
    }

    /// Checks sizes and block sizes of the members.
    pub(super) fn check(self, members: &[Below]) -> Result<(), String> {
        let primary = members[0];
        for (number, member) in members.iter().enumerate().skip(1) {
            let (this, first) = match self {
                Self::Copy => ("the secondary".to_owned(), "the primary"),
                Self::Equals => (format!("member {number}"), "member 0"),
            };
            if member.size < primary.size {
                return Err(format!("{this} has {} bytes, {first} {}", member.size, primary.size));
            }
            if member.block_size > primary.block_size {
                return Err(format!(
                    "{this} has blocks of {} bytes, the drive of {}",
                    member.block_size, primary.block_size
                ));
            }
        }
        Ok(())
    }

    /// Opens the set of these layers. A new log gets the number `id`.
    pub(super) fn open(self, layers: &[Below], rate: u64, id: u64) -> Result<(Mirror, usize), String> {
        let members = self.members(layers)?;
        self.check(&layers[..members])?;
        let size = layers[0].size;
        let mirror = Mirror::new(Config {
            members,
            size,
            region_bytes: region_bytes(size),
            log_bytes: layers[members].size,
            piece_bytes: CHUNK_BYTES.into(),
            rate,
            promotes: self == Self::Equals,
            id,
            storage: std::array::from_fn(|member| layers[..members].get(member).map_or(0, |layer| layer.id)),
            new: (0..members)
                .filter(|member| layers[*member].is_new)
                .fold(Members::NONE, |all, member| all.with(Members::one(member))),
        })?;
        Ok((mirror, members))
    }

    /// Returns the rate in bytes a second, from the option `resync_mib_s`.
    pub(super) fn rate(self, options: &Options) -> Result<u64, String> {
        self.check_options(options)?;
        match options.get("resync_mib_s").map(str::parse::<u32>) {
            None => Ok(RATE),
            Some(Ok(rate)) if rate > 0 => Ok(u64::from(rate) << 20),
            Some(_) => Err("resync_mib_s is a number of MiB a second, from 1".into()),
        }
    }
}
