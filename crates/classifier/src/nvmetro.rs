//! Programs written for NVMetro's interface: another context to verify them against, other hooks to count.

use crate::tally::Tally;
use crate::{Clock, Loaded, View};
use sluice_ebpf::{ContextLayout, LoadError, Map, Object, Options, Program};
use sluice_router::{NVMETRO_CONTEXT, NVMETRO_WRITABLE, Nvmetro};
use std::sync::Arc;

/// Section of such a program.
pub(crate) const SECTION: &str = "nvme_mdev";
/// Byte of its context that has the hook, as one of four bits.
const HOOK: usize = 70;

pub(crate) fn load(object: &[u8], clock: Clock, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    let layout = ContextLayout::new(NVMETRO_CONTEXT).read(0..NVMETRO_CONTEXT).write(NVMETRO_WRITABLE);
    let options = Options { clock_step_ns: clock.step_ns(), ..Options::new(layout) };
    let object = Object::from_elf(object, SECTION, &options.limits)?;
    let mut program = Program::load(&object, &options, carry)?;
    let tally = Arc::new(Tally::default());
    let view = View::new(object, &program, Arc::clone(&tally));
    let run = move |context: &mut [u8; NVMETRO_CONTEXT]| {
        tally.called(hook(context[HOOK]));
        program.run(context).inspect_err(|trap| tally.trapped(*trap))
    };
    Ok(Loaded { classifier: Box::new(Nvmetro::new(run)), view })
}

/// Returns the router's number of a hook: VSQ is the submission, HCQ and NFD_WRITE the end of a leg, PRE_VCQ
/// the last.
fn hook(bits: u8) -> u8 {
    match bits {
        1 => 0,
        2 | 4 => 1,
        _ => 2,
    }
}
