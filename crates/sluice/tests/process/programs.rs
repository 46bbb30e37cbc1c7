//! Classifiers in C, compiled as their authors would.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the sources of the project's own classifiers.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../classifiers");
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/include");

/// Compiles a source that is given as text.
pub(crate) fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let file = folder.join(name).with_extension("c");
    std::fs::write(&file, format!("#include \"sluice.h\"\n{source}")).expect("room on the disk");
    compile_file(&file, folder)
}

/// Compiles a classifier of the project.
pub(crate) fn compile_own(folder: &Path, name: &str) -> PathBuf {
    compile_file(&Path::new(OWN).join(name).with_extension("c"), folder)
}

fn compile_file(source: &Path, folder: &Path) -> PathBuf {
    let object = folder.join(source.file_stem().expect("a name")).with_extension("o");
    let done = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall", "-Werror", "-I", INCLUDE, "-c"])
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("clang is installed, by scripts/setup.sh");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    object
}

/// Classifier that sends everything to the first path, and counts its calls in a map, by hook.
pub(crate) const COUNTING: &str = r#"
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 3);
    __type(key, __u32);
    __type(value, __u64);
} calls SEC(".maps");

SEC("classifier")
sluice_verdict counting(struct sluice_context *ctx)
{
    __u32 hook = ctx->hook;
    __u64 *count = bpf_map_lookup_elem(&calls, &hook);

    if (count)
        *count += 1;
    if (ctx->hook == SLUICE_HOOK_SUBMISSION)
        return SLUICE_SEND(0) | SLUICE_CALL_BEFORE_COMPLETION;
    return SLUICE_FINISH_WITH(0);
}
"#;

/// Classifier that does the same by another way: it holds the command, and is called back when its leg is
/// done.
pub(crate) const COUNTING_LEGS: &str = r#"
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 3);
    __type(key, __u32);
    __type(value, __u64);
} calls SEC(".maps");

SEC("classifier")
sluice_verdict counting(struct sluice_context *ctx)
{
    __u32 which = ctx->hook == SLUICE_HOOK_SUBMISSION ? 0 : 2;
    __u64 *count = bpf_map_lookup_elem(&calls, &which);

    if (count)
        *count += 1;
    if (ctx->hook == SLUICE_HOOK_SUBMISSION)
        return SLUICE_HOLD | SLUICE_START(SLUICE_LEG(0)) | SLUICE_CALL_AT(SLUICE_LEG(0));
    return SLUICE_COMPLETE(ctx->status);
}
"#;

/// Classifier that sends everything to the first path, and counts commands in a map that all drives share.
pub(crate) const SHARED: &str = r#"
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(map_flags, SLUICE_F_SHARED);
    __type(key, __u32);
    __type(value, __u64);
} common SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} own SEC(".maps");

SEC("classifier")
sluice_verdict shared(struct sluice_context *ctx)
{
    __u32 key = 0;
    __u64 *all = bpf_map_lookup_elem(&common, &key);
    __u64 *ours = bpf_map_lookup_elem(&own, &key);

    if (all && ours) {
        __sync_fetch_and_add(all, 1);
        *ours += 1;
    }
    return SLUICE_SEND(0);
}
"#;

/// Classifier that answers reads with an invalid verdict: a leg without a path.
pub(crate) const IMPOSSIBLE: &str = r#"
SEC("classifier")
sluice_verdict impossible(struct sluice_context *ctx)
{
    return ctx->opcode == SLUICE_READ ? SLUICE_SEND(6) : SLUICE_SEND(0);
}
"#;

/// Classifier whose calls for reads never end.
pub(crate) const ENDLESS: &str = r#"
SEC("classifier")
sluice_verdict endless(struct sluice_context *ctx)
{
    volatile __u64 turns = 0;

    while (ctx->opcode == SLUICE_READ)
        turns += 1;
    return turns ? SLUICE_HOLD : SLUICE_SEND(0);
}
"#;

/// Classifier that reads outside its memory, with an index that no verifier can predict.
pub(crate) const WILD: &str = r#"
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64[4]);
} table SEC(".maps");

SEC("classifier")
sluice_verdict wild(struct sluice_context *ctx)
{
    __u32 key = 0;
    __u64 *values = bpf_map_lookup_elem(&table, &key);

    if (!values || ctx->opcode != SLUICE_READ)
        return SLUICE_SEND(0);
    values[ctx->slba] = 1;
    return SLUICE_SEND(0);
}
"#;

/// Classifier that cannot be loaded, because it writes to a read-only field.
pub(crate) const FORGING: &str = r#"
SEC("classifier")
sluice_verdict forging(struct sluice_context *ctx)
{
    ctx->nsid = 2;
    return SLUICE_SEND(0);
}
"#;

/// Classifier that traces a text and counts.
pub(crate) const TALKING: &str = r#"
SEC("classifier")
sluice_verdict talking(struct sluice_context *ctx)
{
    const char text[] = "a command came";

    sluice_count(ctx->opcode & 63);
    sluice_trace(text, sizeof(text) - 1);
    return SLUICE_SEND(0);
}
"#;
