//! Accepting connections: the listener's threads, up to the Connect command of each connection.
//!
//! A connection passes the TLS handshake if there is one (`psk_lookup`), then ICReq (`icreq`), then its Connect
//! command (`connect`). A connection that ends here lingers until its host has read the reason (`linger`).
//! Addresses have their turns in order (`connection_set`).

mod connect;
mod connection_set;
mod icreq;
mod linger;
mod listener;
mod psk_lookup;
mod wire;

pub(crate) use connect::{AcceptedConnect, Host, Refusal, refuse};
pub(crate) use icreq::ConnectCommand;
pub(crate) use listener::Address;
pub use listener::Listener;
pub(crate) use wire::Wire;
