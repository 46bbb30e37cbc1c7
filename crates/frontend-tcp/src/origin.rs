//! Origin of a connection, by which limited resources are shared.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Returns the address of a peer, reduced to the part that a host cannot vary at will. For IPv6 that is the
/// /64 prefix, except for link-local addresses.
pub(crate) fn origin(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(address) if !address.is_unicast_link_local() => {
            Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_one_however_many_addresses_it_has() {
        let from = |address: &str| origin(SocketAddr::new(address.parse().expect("an address"), 1));
        assert_eq!(from("2001:db8:1:2::3"), from("2001:db8:1:2:3:4:5:6"));
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
        for (one, other) in
            [("2001:db8:1:2::3", "2001:db8:1:3::3"), ("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")]
        {
            assert_ne!(from(one), from(other));
        }
    }
}
