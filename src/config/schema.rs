//! The JSON Schema of the configuration, for editors and for those who generate files.
//!
//! Sentences and defaults come from the settings themselves. Plugins and destinations
//! bring the schemas of theirs; a binary with plugins of its own has them in its schema.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::settings::Settings;
use crate::plugin::Entry;
use crate::{handlers, plugins};

/// The schema, with these plugins beside the built-in ones.
pub fn schema(own: &[Entry]) -> Value {
    let mut schemas = SchemaSettings::draft07().into_generator();
    let mut root = Settings::json_schema(&mut schemas).to_value();
    let plugins = plugins::BUILT_IN.iter().chain(own).map(|entry| (entry.name, entry.schema));
    let plugin = one_of(&mut schemas, "A plugin: its name, and its settings.", plugins);
    let handlers = handlers::BUILT_IN.iter().map(|entry| (entry.name, entry.schema));
    let mut destination = one_of(&mut schemas, "Who answers: exactly one of these.", handlers);
    destination["properties"]["proxy"] = json!({ "type": "string", "description": "The name of an upstream." });
    let mut own = Schema::from(Map::from_iter([("properties".into(), json!({ "plugin": plugin, "to": destination }))]));
    for transform in schemas.transforms_mut() {
        transform.transform(&mut own);
    }
    let own = own.to_value();
    let mut definitions = schemas.take_definitions(true);
    definitions.insert("Plugin".into(), own["properties"]["plugin"].clone());
    definitions.insert("Destination".into(), own["properties"]["to"].clone());
    root["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    root["title"] = json!("Headwall");
    root["definitions"] = Value::Object(definitions);
    root
}

/// A map with exactly one key.
fn one_of(
    schemas: &mut SchemaGenerator,
    description: &str,
    all: impl Iterator<Item = (&'static str, fn(&mut SchemaGenerator) -> Schema)>,
) -> Value {
    let properties: Map<String, Value> =
        all.map(|(name, schema)| (name.to_owned(), nullable(schema(schemas).to_value()))).collect();
    json!({
        "description": description,
        "type": "object",
        "properties": properties,
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": false,
    })
}

/// `- request_id:` with nothing behind it is a map without keys.
fn nullable(mut schema: Value) -> Value {
    if schema["type"] == "object" && schema.get("required").is_none() {
        schema["type"] = json!(["object", "null"]);
    }
    schema
}
