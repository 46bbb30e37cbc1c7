//! The same over NVMe/TCP.

mod access;
mod authentication;
mod fake;
mod hostile;
mod io;
mod lone;
mod loss;
mod multipath;
mod notices;
mod proxy;
mod readings;
mod replaced;
mod rig;
mod tls;
