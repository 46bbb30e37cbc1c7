//! Requests of a client, message by message.

use super::deferred_close::DeferredClose;
use super::describe::{self, Attachment};
use super::populate::Populator;
use super::record::{HandOverError, Incoming, Outgoing, put_mode, take_mode};
use super::region::{self, Function, Written};
use super::reset::Waiting;
use super::{Counters, DoorbellPolicy, dma, version};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_controller::{Controller, DoorbellMode, Subsystem};
use sluice_frontend::{LogLimit, limited};
use sluice_memory::{MapError, Space};
use sluice_vfio_user::device::region as regions;
use sluice_vfio_user::region::{RegionAccess, WriteMulti};
use sluice_vfio_user::version::Capabilities;
use sluice_vfio_user::{Command, Errno, Header, MAX_DATA_TRANSFER};
use std::fmt;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Writes in one message. Each write can be a reset, and other tasks get their turn only after some messages.
const WRITES_MAX: usize = 32;

/// Context of a message, besides the client's own state.
pub(super) struct Context<'a> {
    pub(super) name: &'a str,
    pub(super) controller: &'a mut Controller,
    pub(super) subsystem: &'a mut Subsystem,
    pub(super) space: &'a mut Space,
    pub(super) counters: &'a mut Counters,
    /// Close of descriptors that are of no use.
    pub(super) deferred_close: &'a mut DeferredClose,
    /// Populator for newly mapped memory, if it is to be populated.
    pub(super) populator: Option<&'a Populator>,
    /// Limit of log messages about clients. The limit outlives each client, which could otherwise reconnect
    /// to log more.
    pub(super) warnings: &'a mut LogLimit,
    pub(super) now_ns: u64,
}

/// Next step after a message that was understood.
#[derive(Debug)]
#[must_use]
pub(super) enum Next {
    /// Reply at once.
    Reply,
    /// Reply at once, with the file that has the doorbells.
    ReplyWithDoorbells,
    /// Reply at the end of a wait.
    Wait(Waiting),
}

/// Refusal of a message, which is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Error reply only.
    Message(Errno),
    /// Error reply only, for a map that is refused.
    Memory(MapError),
    /// Error reply, and the end of the connection.
    Client(Errno, &'static str),
}

impl Refusal {
    /// Returns the error number in the reply.
    pub(super) fn errno(self) -> Errno {
        match self {
            Refusal::Message(errno) | Refusal::Client(errno, _) => errno,
            Refusal::Memory(error) => Errno::from_raw_os_error(error.errno()),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Message(errno)
    }
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        Refusal::Memory(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Message(errno) => errno.fmt(f),
            Refusal::Memory(error) => error.fmt(f),
            Refusal::Client(_, what) => f.write_str(what),
        }
    }
}

/// Stage of a client's negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No VERSION received.
    Connected,
    /// VERSION answered. The doorbell mode is open until the client requests the regions.
    Negotiated { may_map: bool },
    /// Doorbell mode fixed.
    Settled(DoorbellMode),
}

/// State of the device for one client.
#[derive(Debug)]
pub(super) struct Client {
    stage: Stage,
    policy: DoorbellPolicy,
    /// Log message written, that not all memory is shared.
    unshared_logged: bool,
    /// Bytes of data that one message may carry to the client.
    data_max: usize,
    pub(super) function: Function,
}

impl Client {
    pub(super) fn new(policy: DoorbellPolicy, function: Function) -> Self {
        Self { stage: Stage::Connected, policy, unshared_logged: false, data_max: 0, function }
    }

    pub(super) fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        match self.stage {
            Stage::Connected => part.put(0u8),
            Stage::Negotiated { may_map } => {
                part.put(1u8);
                part.put(may_map);
            }
            Stage::Settled(mode) => {
                part.put(2u8);
                put_mode(part, mode);
            }
        }
        part.put(self.unshared_logged);
        part.put(self.data_max as u64);
        self.function.put(part, outgoing);
    }

    pub(super) fn take(&mut self, part: &mut Reader<'_>, incoming: &Incoming) -> Result<(), HandOverError> {
        self.stage = match part.get::<u8>()? {
            0 => Stage::Connected,
            1 => Stage::Negotiated { may_map: part.get()? },
            2 => Stage::Settled(take_mode(part)?),
            _ => return Err(RecordError::Invalid("stage of a client").into()),
        };
        self.unshared_logged = part.get()?;
        self.data_max = part.below(MAX_DATA_TRANSFER as u64 + 1, "limit of data")? as usize;
        self.function.take(part, incoming)
    }

    /// Returns the doorbell mode, once it is fixed.
    pub(super) fn doorbell_mode(&self) -> Option<DoorbellMode> {
        match self.stage {
            Stage::Settled(mode) => Some(mode),
            _ => None,
        }
    }

    /// Returns the limit of data in one message, in bytes: the smaller one of the client's and the server's.
    pub(super) fn data_max(&self) -> usize {
        self.data_max
    }

    /// Executes one message and writes the payload of the reply. Takes the descriptors that it uses out of
    /// `fds`.
    pub(super) fn handle(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: &mut Vec<OwnedFd>,
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        if !header.is_command() {
            return Err(Refusal::Client(Errno::INVAL, "a message that is not a command"));
        }
        if self.stage == Stage::Connected {
            return self.negotiate(header, payload, reply);
        }
        match header.command {
            // These two are by far the most frequent.
            Command::REGION_WRITE => return self.write(payload, reply, context),
            Command::REGION_READ => self.read(payload, reply, context)?,

            Command::DMA_MAP => self.map(payload, fds, context)?,
            Command::DMA_UNMAP => return unmap(payload, reply, context),
            Command::DEVICE_GET_INFO => describe::device_info(payload, reply)?,
            Command::DEVICE_GET_REGION_INFO => return self.region_info(payload, reply, context),
            Command::DEVICE_GET_REGION_IO_FDS => describe::region_io_fds(payload, reply)?,
            Command::DEVICE_GET_IRQ_INFO => {
                describe::irq_info(payload, self.function.interrupts.vectors(), reply)?
            }
            Command::DEVICE_SET_IRQS => self.function.interrupts.set(payload, fds)?,
            Command::DEVICE_RESET => return Ok(Next::Wait(self.reset(context))),
            Command::REGION_WRITE_MULTI => self.write_multi(payload, reply, context)?,
            Command::VERSION => return Err(Errno::INVAL.into()),
            _ => return Err(Errno::NOTSUP.into()),
        }
        Ok(Next::Reply)
    }

    /// Handles the first message. Anything but a VERSION that the server supports ends the connection.
    fn negotiate(&mut self, header: &Header, payload: &[u8], reply: &mut Vec<u8>) -> Result<Next, Refusal> {
        if header.command != Command::VERSION {
            return Err(Refusal::Client(Errno::INVAL, "a message before VERSION"));
        }
        let capabilities = version::negotiate(payload, reply)
            .map_err(|errno| Refusal::Client(errno, "a VERSION message that cannot be agreed to"))?;
        let data_max = capabilities
            .as_ref()
            .map_or(Capabilities::default().max_data_xfer_size, |c| c.max_data_xfer_size);
        self.data_max = data_max.min(MAX_DATA_TRANSFER as u64) as usize;
        self.stage = Stage::Negotiated { may_map: self.policy.may_map(capabilities.as_ref()) };
        Ok(Next::Reply)
    }

    /// Fixes the doorbell mode, when a client first requests the regions, or when it writes to the device
    /// before that. In the latter case it cannot have mapped anything.
    fn settle(&mut self, asked: bool, controller: &mut Controller) -> DoorbellMode {
        let mode = match self.stage {
            Stage::Settled(mode) => return mode,
            Stage::Negotiated { may_map: true } if asked => DoorbellMode::Mapped,
            _ => DoorbellMode::Trapped,
        };
        controller.set_doorbell_mode(mode);
        self.stage = Stage::Settled(mode);
        mode
    }

    fn region_info(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        let mode = self.settle(true, context.controller);
        Ok(match describe::region_info(payload, mode, reply)? {
            Attachment::Nothing => Next::Reply,
            Attachment::Doorbells => Next::ReplyWithDoorbells,
        })
    }

    fn map(
        &mut self,
        payload: &[u8],
        fds: &mut Vec<OwnedFd>,
        context: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let (address, reachable) = dma::map(context.space, payload, fds)?;
        context.populator.into_iter().for_each(|it| it.populate(context.space.unpopulated(address)));
        context.controller.find_memory(context.space);
        context.counters.maps += 1;
        if !reachable && !std::mem::replace(&mut self.unshared_logged, true) {
            limited!(
                info,
                context.warnings,
                context.now_ns,
                drive = context.name,
                "some of the guest's memory came without a file descriptor: each access to it is a message to \
                 the client, and slow; give QEMU a memory backend with share=on"
            );
        }
        Ok(())
    }

    fn read(&self, payload: &[u8], reply: &mut Vec<u8>, context: &mut Context<'_>) -> Result<(), Errno> {
        let (access, _) = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
        region::check(&access)?;
        reply.extend_from_slice(access.as_bytes());
        reply.resize(RegionAccess::SIZE + access.count as usize, 0);
        self.function.read(context.controller, &access, &mut reply[RegionAccess::SIZE..]);
        Ok(())
    }

    fn write(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        let (access, data) = RegionAccess::parse_write(payload).ok_or(Errno::INVAL)?;
        region::check(&access)?;
        reply.extend_from_slice(access.as_bytes());
        match self.write_region(&access, data, context) {
            Written::Reset => Ok(Next::Wait(self.reset(context))),
            _ => Ok(Next::Reply),
        }
    }

    /// Executes several posted writes of one message. All writes are checked before the first is executed.
    /// The writes go to BAR0, in which a write never has to wait.
    fn write_multi(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let writes = WriteMulti::parse(payload).filter(|writes| writes.len() <= WRITES_MAX);
        let writes = writes.ok_or(Errno::INVAL)?;
        for write in writes {
            region::check(&write.access())?;
            if write.access().region != regions::BAR0 || write.data().is_none() {
                return Err(Errno::INVAL);
            }
        }
        for write in writes {
            let _ = self.write_region(&write.access(), write.data().unwrap_or_default(), context);
        }
        reply.extend_from_slice(WriteMulti { count: writes.len() as u64 }.as_bytes());
        Ok(())
    }

    fn write_region(&mut self, access: &RegionAccess, data: &[u8], context: &mut Context<'_>) -> Written {
        if access.region == regions::BAR0 {
            self.settle(false, context.controller);
        }
        let written = self.function.write(
            context.controller,
            context.subsystem,
            access,
            data,
            context.space,
            context.now_ns,
        );
        if let Written::Doorbells(count) = written {
            context.counters.doorbells += count as u64;
        }
        written
    }

    fn reset(&mut self, context: &mut Context<'_>) -> Waiting {
        context.counters.resets += 1;
        Waiting::reset(context.controller, context.subsystem, &mut self.function, context.now_ns)
    }
}

/// Returns whether a message changes no state that remote queues have copied. Such messages are queries, and
/// writes to BAR0: doorbells reach remote queues, and the controller recalls them for its registers where
/// needed. REGION_WRITE_MULTI writes to BAR0 only.
pub(super) fn is_known_to_all(header: &Header, payload: &[u8]) -> bool {
    match header.command {
        Command::REGION_READ
        | Command::REGION_WRITE_MULTI
        | Command::DEVICE_GET_INFO
        | Command::DEVICE_GET_REGION_INFO
        | Command::DEVICE_GET_REGION_IO_FDS
        | Command::DEVICE_GET_IRQ_INFO => true,
        Command::REGION_WRITE => {
            RegionAccess::read_from_prefix(payload).is_ok_and(|(access, _)| access.region == regions::BAR0)
        }
        _ => false,
    }
}

fn unmap(payload: &[u8], reply: &mut Vec<u8>, context: &mut Context<'_>) -> Result<Next, Refusal> {
    let removed = dma::unmap(context.space, context.controller, context.subsystem, payload, reply)?;
    context.counters.unmaps += 1;
    Ok(Next::Wait(Waiting::unmap(removed, context.now_ns)))
}

impl DoorbellPolicy {
    /// Returns whether a client with these capabilities may map the doorbells. A client that takes no
    /// descriptors cannot.
    fn may_map(self, capabilities: Option<&Capabilities>) -> bool {
        let takes_fds = capabilities.is_none_or(|client| client.max_msg_fds > 0);
        match self {
            DoorbellPolicy::Auto => capabilities.is_none(),
            DoorbellPolicy::Trapped => false,
            DoorbellPolicy::Mapped => takes_fds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_decides_which_clients_map_the_doorbells() {
        let with = |max_msg_fds| Some(Capabilities { max_msg_fds, ..Capabilities::default() });
        for (capabilities, auto, mapped) in
            [(None, true, true), (with(0), false, false), (with(1), false, true), (with(8), false, true)]
        {
            let may_map = |policy: DoorbellPolicy| policy.may_map(capabilities.as_ref());
            let found = [DoorbellPolicy::Auto, DoorbellPolicy::Trapped, DoorbellPolicy::Mapped].map(may_map);
            assert_eq!(found, [auto, false, mapped], "{capabilities:?}");
        }
    }

    /// Checks for each command whether remote queues must come back before it is answered.
    #[test]
    fn remote_queues_stay_for_queries_and_doorbells() {
        let access = |region| RegionAccess { offset: 0x1000, region, count: 4 };
        for (command, region, expected) in [
            (Command::REGION_READ, regions::CONFIG, true),
            (Command::REGION_WRITE_MULTI, regions::BAR0, true),
            (Command::DEVICE_GET_INFO, 0, true),
            (Command::DEVICE_GET_REGION_INFO, 0, true),
            (Command::DEVICE_GET_REGION_IO_FDS, 0, true),
            (Command::DEVICE_GET_IRQ_INFO, 0, true),
            (Command::REGION_WRITE, regions::BAR0, true),
            (Command::REGION_WRITE, regions::CONFIG, false),
            (Command::DMA_MAP, 0, false),
            (Command::DMA_UNMAP, 0, false),
            (Command::DEVICE_SET_IRQS, 0, false),
            (Command::DEVICE_RESET, 0, false),
            (Command::VERSION, 0, false),
        ] {
            let header = Header::command(1, command);
            assert_eq!(is_known_to_all(&header, access(region).as_bytes()), expected, "{command:?}");
        }
        assert!(!is_known_to_all(&Header::command(1, Command::REGION_WRITE), &[0; 15]));
    }

    #[test]
    fn a_refusal_has_its_error_number() {
        for (refusal, errno) in [
            (Refusal::Message(Errno::NOTSUP), Errno::NOTSUP),
            (Refusal::Client(Errno::INVAL, "why"), Errno::INVAL),
            (Refusal::Memory(MapError::NotMemory), Errno::from_raw_os_error(MapError::NotMemory.errno())),
        ] {
            assert_eq!(refusal.errno(), errno, "{refusal}");
            assert!(!refusal.to_string().is_empty());
        }
        assert_eq!(Refusal::Client(Errno::INVAL, "why").to_string(), "why");
    }
}
