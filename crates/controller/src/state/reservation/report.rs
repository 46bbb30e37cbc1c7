//! Reservation Report (Base 7.5).

use crate::state::reservation::host::HostId;
use crate::state::reservation::state::Reservations;
use sluice_nvme::Status;
use sluice_nvme::reservation::{ExtendedRegistrant, ReportHeader, ShortRegistrant};
use zerocopy::IntoBytes;

/// CNTLID of a registrant with dynamic controllers: the host may have any number of them, or none.
const DYNAMIC: u16 = 0xffff;

impl Reservations {
    /// Returns the Reservation Status data structure for this host, `extended` or not.
    ///
    /// # Errors
    /// Host Identifier Inconsistent Format: some identifier does not fit into 64 bits.
    pub(crate) fn report(&self, host: HostId, extended: bool) -> Result<Vec<u8>, Status> {
        let too_long = |host: HostId| matches!(host, HostId::Extended(_));
        if !extended && (too_long(host) || self.registrants.iter().any(|it| too_long(it.host))) {
            return Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT);
        }
        let rtype = self.kind().map_or(0, |kind| kind as u8);
        let header = ReportHeader::new(self.generation, rtype, self.registrants.len() as u16, self.persists);
        let mut report = header.as_bytes().to_vec();
        if extended {
            report.resize(ExtendedRegistrant::SIZE, 0);
        }
        for registrant in &self.registrants {
            let (host, key) = (registrant.host.bytes(), registrant.key);
            let holds = self.is_holder(registrant.host);
            match extended {
                true => report.extend(ExtendedRegistrant::new(DYNAMIC, holds, host, key).as_bytes()),
                false => {
                    let short = *host.first_chunk().expect("half of it");
                    report.extend(ShortRegistrant::new(DYNAMIC, holds, short, key).as_bytes());
                }
            }
        }
        Ok(report)
    }
}
