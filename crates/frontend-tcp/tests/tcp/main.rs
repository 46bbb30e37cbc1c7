//! NVMe/TCP hosts, conforming and not, against real controllers over real sockets.

mod authentication;
mod discovery;
mod flood;
mod host;
mod hostile;
mod housekeeping;
mod limits;
mod many;
mod rig;
mod service;
mod tls;
mod tunnel;
