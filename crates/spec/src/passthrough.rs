//! Opcodes that pass to a device as the guest writes them, as a user lists them.

use super::Fault;
use serde::{Deserialize, Serialize};
use sluice_nvme::opcode::{admin, io};
use utoipa::ToSchema;

/// Opcodes of commands that a device receives as the guest wrote them; none unless listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PassthroughSpec {
    /// I/O commands: `verify`, `write_uncorrectable`, or a vendor's own from 0x80 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub io: Vec<Opcode>,
    /// Admin commands: `get_log_page`, for the vendor's logs, or a vendor's own from 0xc0 on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub admin: Vec<Opcode>,
}

/// An opcode by its name or its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Opcode {
    Number(u8),
    Name(String),
}

/// Opcodes that have names.
const IO_NAMES: [(&str, u8); 2] = [("verify", io::VERIFY), ("write_uncorrectable", io::WRITE_UNCORRECTABLE)];
const ADMIN_NAMES: [(&str, u8); 1] = [("get_log_page", admin::GET_LOG_PAGE)];

/// First vendor specific opcode (Base 3.1.3.4; NVM Command Set 3).
const IO_VENDOR: u8 = 0x80;
const ADMIN_VENDOR: u8 = 0xc0;

/// Data transfer bits of a vendor specific opcode. With both bits set, data moves both ways, for which a PRP
/// list has no form.
const BOTH_WAYS: u8 = 0b11;

impl PassthroughSpec {
    /// Returns the opcodes of its I/O commands.
    pub fn io_opcodes(&self) -> impl Iterator<Item = u8> {
        self.io.iter().filter_map(|opcode| opcode.number(&IO_NAMES))
    }

    /// Returns the opcodes of its admin commands.
    pub fn admin_opcodes(&self) -> impl Iterator<Item = u8> {
        self.admin.iter().filter_map(|opcode| opcode.number(&ADMIN_NAMES))
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        check_list("io", &self.io, &IO_NAMES, IO_VENDOR)?;
        check_list("admin", &self.admin, &ADMIN_NAMES, ADMIN_VENDOR)
    }
}

impl Opcode {
    fn number(&self, names: &[(&str, u8)]) -> Option<u8> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Name(wanted) => names.iter().find(|(name, _)| name == wanted).map(|(_, number)| *number),
        }
    }
}

fn check_list(key: &'static str, list: &[Opcode], names: &[(&str, u8)], vendor: u8) -> Result<(), Fault> {
    let listed = names.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let hint = format!("use {listed}, or a vendor's own, {vendor:#x} to 0xff");
    for opcode in list {
        let fault = |why: String| Err(Fault::at_key(key, why).hint(&hint));
        match (opcode, opcode.number(names)) {
            (Opcode::Name(name), None) => return fault(format!("there is no `{name}` that can pass")),
            (_, Some(number)) if names.iter().any(|(_, known)| *known == number) => {}
            (_, Some(number)) if number < vendor => {
                return fault(format!("opcode {number:#04x} cannot pass as it is"));
            }
            (_, Some(number)) if number & BOTH_WAYS == BOTH_WAYS => {
                return fault(format!("opcode {number:#04x} moves data both ways"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_kept_in_bounds_is_taken() {
        let io = |io| PassthroughSpec { io, ..PassthroughSpec::default() }.check();
        let admin = |admin| PassthroughSpec { admin, ..PassthroughSpec::default() }.check();
        let name = |name: &str| Opcode::Name(name.to_owned());
        assert!(io(vec![name("verify"), Opcode::Number(0x81), Opcode::Number(io::VERIFY)]).is_ok());
        assert!(admin(vec![name("get_log_page"), Opcode::Number(0xc0)]).is_ok());
        // Addresses in the data, reservations, data both ways, and commands that a guest must not send to a
        // controller.
        for number in [io::COPY, io::DATASET_MANAGEMENT, io::READ, 0x0d, 0x15, 0x83] {
            assert!(io(vec![Opcode::Number(number)]).is_err(), "{number:#x}");
        }
        for number in [admin::FORMAT_NVM, admin::CREATE_IO_SQ, admin::SANITIZE, admin::SET_FEATURES, 0xc3] {
            assert!(admin(vec![Opcode::Number(number)]).is_err(), "{number:#x}");
        }
        assert!(io(vec![name("get_log_page")]).is_err());
    }
}
