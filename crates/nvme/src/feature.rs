//! Features (Base 5.15, 5.27).

/// Feature identifier; open, since hosts ask for what they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureId(pub u8);

impl FeatureId {
    pub const ARBITRATION: FeatureId = FeatureId(0x01);
    pub const POWER_MANAGEMENT: FeatureId = FeatureId(0x02);
    pub const TEMPERATURE_THRESHOLD: FeatureId = FeatureId(0x04);
    pub const ERROR_RECOVERY: FeatureId = FeatureId(0x05);
    pub const VOLATILE_WRITE_CACHE: FeatureId = FeatureId(0x06);
    pub const NUMBER_OF_QUEUES: FeatureId = FeatureId(0x07);
    pub const INTERRUPT_COALESCING: FeatureId = FeatureId(0x08);
    pub const INTERRUPT_VECTOR: FeatureId = FeatureId(0x09);
    pub const WRITE_ATOMICITY: FeatureId = FeatureId(0x0a);
    pub const ASYNC_EVENTS: FeatureId = FeatureId(0x0b);
    pub const TIMESTAMP: FeatureId = FeatureId(0x0e);
    pub const KEEP_ALIVE_TIMER: FeatureId = FeatureId(0x0f);
    pub const HOST_BEHAVIOR: FeatureId = FeatureId(0x16);
}

/// What Get Features is to answer with (CDW10 bits 10:8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select(pub u8);

impl Select {
    pub const CURRENT: Select = Select(0);
    pub const DEFAULT: Select = Select(1);
    pub const SAVED: Select = Select(2);
    pub const SUPPORTED_CAPABILITIES: Select = Select(3);
}

/// Dword 0 of the answer to [`Select::SUPPORTED_CAPABILITIES`].
pub mod capabilities {
    pub const SAVEABLE: u32 = 1 << 0;
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    pub const CHANGEABLE: u32 = 1 << 2;
}
