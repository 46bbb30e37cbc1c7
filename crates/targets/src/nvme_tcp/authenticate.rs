//! Authentication of this host, after the Connect command of a connection (Base 6.3, AUTHREQ).

use super::NvmeTcpConfig;
use super::error::ErrorKind;
use super::link::{Data, Link};
use sluice_nvme::fabrics::{AUTHENTICATION_REQUIRED, Authentication, Fctype, SECURE_CHANNEL_REQUIRED};
use sluice_nvme_auth::{
    Entropy, Failure, Host, MESSAGE_MAX, Names, PROTOCOL_SPECIFIC, SECURITY_PROTOCOL, Step, Terms,
};
use std::sync::Arc;

/// Does what AUTHREQ requires, and requires the controller's proof if there is a key for it.
pub(super) fn authenticate(
    link: &mut Link,
    config: &NvmeTcpConfig,
    qid: u16,
    dw0: u32,
) -> Result<(), ErrorKind> {
    if dw0 & SECURE_CHANNEL_REQUIRED != 0 {
        return Err(ErrorKind::Unsupported("queues that are to become secure channels"));
    }
    let terms = match (&config.terms, dw0 & AUTHENTICATION_REQUIRED != 0) {
        (Some(terms), true) => Arc::clone(terms),
        (None, true) => return Err(ErrorKind::NoKey),
        // Some controllers, such as Linux 7.3's, require no authentication on I/O queues. This host does,
        // since another controller may answer on this connection.
        (Some(terms), false) if terms.controller.is_some() && qid != 0 => Arc::clone(terms),
        (Some(terms), false) if terms.controller.is_some() => return Err(ErrorKind::Unproved),
        (_, false) => return Ok(()),
    };
    converse(link, config, terms).map_err(|error| match error {
        // Linux's target may close the connection before it has sent the reason.
        ErrorKind::Closed | ErrorKind::Socket(_) => ErrorKind::BrokenOff,
        other => other,
    })
}

fn converse(link: &mut Link, config: &NvmeTcpConfig, terms: Arc<Terms>) -> Result<(), ErrorKind> {
    let names = Names { hostnqn: config.hostnqn.clone(), subnqn: config.subnqn.clone() };
    let entropy = Entropy::draw().map_err(ErrorKind::Socket)?;
    let mut host = Host::new(names, terms, entropy.t_id(), entropy);
    let mut message = host.negotiate();
    // A transaction has two steps; the second refuses any further message.
    loop {
        send(link, config, &message)?;
        match host.take(&receive(link, config)?) {
            Step::Send(next) => message = next,
            Step::Done(last) => return last.map_or(Ok(()), |last| send(link, config, &last)),
            Step::Failed(why, last) => {
                // The controller may have closed the connection; the reason is returned in any case.
                let _ = last.map(|last| send(link, config, &last));
                return Err(ErrorKind::Authentication(why));
            }
        }
    }
}

fn send(link: &mut Link, config: &NvmeTcpConfig, message: &[u8]) -> Result<(), ErrorKind> {
    const WHAT: &str = "Authentication Send";
    let entry = command(message.len()).entry(Fctype::AUTHENTICATION_SEND);
    let response = link.command(entry, Data::Out(message), config.timeout, WHAT)?;
    match response.status() {
        status if status.is_success() => Ok(()),
        status => Err(ErrorKind::Status(WHAT, status)),
    }
}

fn receive(link: &mut Link, config: &NvmeTcpConfig) -> Result<Vec<u8>, ErrorKind> {
    const WHAT: &str = "Authentication Receive";
    let mut message = vec![0; MESSAGE_MAX];
    let entry = command(message.len()).entry(Fctype::AUTHENTICATION_RECEIVE);
    let response = link.command(entry, Data::In(&mut message), config.timeout, WHAT)?;
    match response.status() {
        status if status.is_success() => Ok(message),
        // A message that cannot be parsed gets no answer.
        _ => Err(ErrorKind::Authentication(Failure::MESSAGE)),
    }
}

fn command(bytes: usize) -> Authentication {
    Authentication { secp: SECURITY_PROTOCOL, spsp: PROTOCOL_SPECIFIC, length: bytes as u32 }
}
