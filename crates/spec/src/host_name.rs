//! Name of this machine as a host.

/// An NVMe Qualified Name and a Host Identifier, which belong together.
#[derive(Debug)]
pub struct HostName {
    pub nqn: String,
    pub id: [u8; 16],
}

impl HostName {
    /// Returns the given name, or else the machine's. That is the name of its NVMe tools, or a name derived
    /// from its machine identifier, which is as lasting.
    pub fn of(given: Option<&str>) -> Self {
        let line = |path: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|line| !line.is_empty())
        };
        let nqn = given.map(str::to_owned).or_else(|| line("/etc/nvme/hostnqn"));
        let machine = || line("/etc/machine-id").or_else(|| line("/etc/hostname")).unwrap_or_default();
        let nqn = nqn.unwrap_or_else(|| crate::uuid_nqn(&format!("host {}", machine())));
        let id = parse_uuid(&nqn).unwrap_or_else(|| crate::uuid(&nqn));
        Self { nqn, id }
    }
}

/// Returns the UUID of a name that has one, because two hosts with one identifier must have one name.
fn parse_uuid(nqn: &str) -> Option<[u8; 16]> {
    let text = nqn.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:")?;
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_uuid_has_that_identifier() {
        let given = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
        let name = HostName::of(Some(given));
        assert_eq!((name.nqn.as_str(), name.id[0], name.id[15]), (given, 0x11, 0x55));
        let other = HostName::of(Some("nqn.2024-01.org.example:a"));
        assert_ne!(other.id, HostName::of(Some("nqn.2024-01.org.example:b")).id);
        assert_eq!(other.id, HostName::of(Some("nqn.2024-01.org.example:a")).id);
        assert!(HostName::of(None).nqn.starts_with("nqn."));
    }
}
