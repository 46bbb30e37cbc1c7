//! `sluice discover`: lists the subsystems at an address.

use clap::Args;
use serde::Serialize;
use sluice_nvme::discovery::DiscoveryEntry;
use sluice_spec::error::ApiError;
use sluice_spec::host_name::HostName;
use sluice_spec::output::Output;
use sluice_spec::table::Table;
use sluice_targets::NvmeTcpConfig;
use sluice_wiring::tls_keys;
use std::path::PathBuf;

/// The port of discovery controllers.
const PORT: u16 = sluice_nvme_tcp::DISCOVERY_PORT;

#[derive(Debug, Args)]
pub(super) struct DiscoverArgs {
    /// Host, and port if it is not 8009: 10.0.0.1, [fd00::1]:8009, storage.example.org
    address: String,
    /// NQN of this host, by default that of /etc/nvme/hostnqn; only subsystems that it may have are listed
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<String>,
    /// File with the key of this host for the discovery service; it makes the connection encrypted
    #[arg(long, value_name = "FILE")]
    tls_keys: Option<PathBuf>,
}

/// A subsystem at an address.
#[derive(Clone, Debug, Serialize)]
struct Found {
    subnqn: String,
    /// `tcp`, or the transport's number.
    transport: String,
    address: String,
    port: String,
    /// `nvm`, `discovery`, or the type's number.
    kind: String,
    portid: u16,
    /// Requirement that connections are encrypted.
    tls: bool,
}

pub(super) fn run(arguments: &DiscoverArgs, output: Output) -> Result<(), ApiError> {
    let host = HostName::of(arguments.hostnqn.as_deref());
    let config = NvmeTcpConfig {
        keys: tls_keys(arguments.tls_keys.as_deref())?,
        ..NvmeTcpConfig::new(&with_port(&arguments.address), "", &host.nqn, host.id)
    };
    let entries = sluice_targets::discover(&config).map_err(|error| ApiError::internal(error.to_string()))?;
    let found: Vec<Found> = entries.iter().map(Found::of).collect();
    output.answer(&found, |found| {
        if found.is_empty() {
            return format!("nothing there that {} may have\n", host.nqn);
        }
        let mut table = Table::new(&["SUBNQN", "KIND", "TRANSPORT", "ADDRESS", "PORT", "TLS"]);
        for Found { subnqn, kind, transport, address, port, tls, .. } in found {
            let tls = if *tls { "yes" } else { "no" }.to_owned();
            table.row([subnqn, kind, transport, address, port, &tls].map(Clone::clone).to_vec());
        }
        table.text()
    })
}

/// Returns the address, with the discovery port if it has none.
fn with_port(address: &str) -> String {
    let has_port = match address.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => host.ends_with(']'),
        Some(_) => true,
        None => false,
    };
    let is_bare_ipv6 = address.contains("::") && !address.starts_with('[');
    match (has_port, is_bare_ipv6) {
        (_, true) => format!("[{address}]:{PORT}"),
        (true, false) => address.to_owned(),
        (false, false) => format!("{address}:{PORT}"),
    }
}

impl Found {
    fn of(entry: &DiscoveryEntry) -> Self {
        Self {
            subnqn: text(&entry.subnqn),
            transport: match entry.trtype {
                DiscoveryEntry::TCP => "tcp".to_owned(),
                other => other.to_string(),
            },
            address: text(&entry.traddr),
            port: text(&entry.trsvcid),
            kind: match entry.subtype {
                DiscoveryEntry::NVM_SUBSYSTEM => "nvm".to_owned(),
                1 | DiscoveryEntry::THIS_DISCOVERY_SUBSYSTEM => "discovery".to_owned(),
                other => other.to_string(),
            },
            portid: entry.portid,
            tls: entry.tsas[0] == DiscoveryEntry::TLS_1_3 && entry.treq & 3 == DiscoveryEntry::SECURE_CHANNEL,
        }
    }
}

/// Returns a field's text without its padding, and with control characters replaced, which a terminal would
/// obey.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]);
    text.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_port_need_not_be_said() {
        for (address, whole) in [
            ("10.0.0.1", "10.0.0.1:8009"),
            ("10.0.0.1:4420", "10.0.0.1:4420"),
            ("a.example", "a.example:8009"),
            ("fd00::1", "[fd00::1]:8009"),
            ("[fd00::1]", "[fd00::1]:8009"),
            ("[fd00::1]:4420", "[fd00::1]:4420"),
        ] {
            assert_eq!(with_port(address), whole);
        }
    }

    #[test]
    fn a_terminal_is_told_nothing() {
        assert_eq!(text(b"nqn.\x1b[2Jx  \0rest"), "nqn.?[2Jx");
        assert_eq!(text(b"4420    "), "4420");
    }
}
