//! What setup would change, and everything that speaks against it, found without changing anything.

use tokio_postgres::Client;

use super::catalog::{self, MINIMUM_VERSION, Publication, Relation, Server, is_required};
use super::identity;
use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::table::Table;

pub(crate) struct Plan {
    /// Tables and partitions that get another replica identity.
    pub identities: Vec<Relation>,
    pub publication: PublicationPlan,
    pub slot_exists: bool,
    /// Whether a new slot is to be carried over to standbys.
    pub failover: bool,
    pub notes: Vec<String>,
}

pub(crate) enum PublicationPlan {
    Create { tables: Vec<String> },
    Alter { add: Vec<String>, set_options: bool },
}

/// What was found, and what is wrong with it, in the words of whoever can mend it.
struct Findings<'a> {
    source: &'a Source,
    problems: Vec<String>,
    notes: Vec<String>,
    identities: Vec<Relation>,
    /// The tables to publish; not their partitions.
    published: Vec<Relation>,
}

pub(crate) async fn make(client: &Client, source: &Source) -> Result<Plan, CaptureError> {
    let server = catalog::server(client).await?;
    let slot = catalog::slot(client, &source.slot).await?;
    let mut findings =
        Findings { source, problems: Vec::new(), notes: Vec::new(), identities: Vec::new(), published: Vec::new() };
    findings.server(&server, slot.is_some());
    if let Some(found) = slot.as_ref().and_then(catalog::Slot::foreign) {
        return Err(CaptureError::ForeignSlot { slot: source.slot.clone(), found });
    }
    for table in Table::ALL {
        if source.follows(*table) {
            let relations = catalog::relations(client, source, *table).await?;
            findings.table(*table, relations, slot.is_none());
        }
    }
    let publication = catalog::publication(client, &source.publication).await?;
    let publication = findings.publication(publication, &server);
    if !findings.problems.is_empty() {
        return Err(CaptureError::Preconditions(findings.problems));
    }
    Ok(Plan {
        identities: findings.identities,
        publication,
        slot_exists: slot.is_some(),
        failover: source.failover && server.version >= catalog::FAILOVER_VERSION,
        notes: findings.notes,
    })
}

impl Findings<'_> {
    fn server(&mut self, server: &Server, slot_exists: bool) {
        let role = &server.role;
        if server.version < MINIMUM_VERSION {
            self.problems
                .push(format!("the primary is PostgreSQL {}: it must be 14 or later", server.version / 10_000));
        }
        if server.in_recovery {
            self.problems.push("source.url points to a standby: set it to the primary".into());
        }
        if server.wal_level != "logical" {
            self.problems.push(CaptureError::WalLevel(server.wal_level.clone()).to_string());
        }
        if !server.may_replicate {
            self.problems
                .push(format!("the role {role} may not replicate: `alter role \"{role}\" replication` as a superuser"));
        }
        if !slot_exists && server.slots >= server.max_slots {
            self.problems.push(format!(
                "all {} replication slots of the primary are taken: raise max_replication_slots and restart it, or drop one",
                server.max_slots
            ));
        }
    }

    fn table(&mut self, table: Table, relations: Vec<Relation>, seeds: bool) {
        let (schema, name) = self.source.tables.qualified_name(table);
        let key = table.name();
        let Some(root) = relations.first().cloned() else {
            let missing =
                format!("table {schema}.{name} is missing: name the platform's own in source.tables.{key}.table");
            match table.is_captured() || table == Table::UserAddon {
                true => self.problems.push(missing),
                false => self.notes.push(format!("note: {missing}; without it what depends on it is not looked up")),
            }
            return;
        };
        let stored: Vec<&str> = self.source.tables.stored(table).collect();
        for reference in &stored {
            let column = self.source.tables.column(table, reference);
            if is_required(table) && !root.columns.iter().any(|have| have == column) {
                self.problems.push(format!(
                    "column {column} of {schema}.{name} is missing: name the platform's own in \
                     source.tables.{key}.columns.{reference}"
                ));
            }
        }
        if identity::goal(self.source, &root).0 == identity::Goal::Index {
            self.readable(table, &root, &stored);
        }
        match table {
            _ if seeds && self.source.ledger && table.is_captured() => self.readable(table, &root, &stored),
            Table::Release if seeds => self.readable(table, &root, &["id", "delivery_status"]),
            Table::UserAddon if seeds => self.readable(table, &root, &["user_id", "addon"]),
            _ => {}
        }
        for relation in relations.into_iter().filter(|relation| !identity::is_met(self.source, relation)) {
            if !relation.owned {
                self.problems.push(format!(
                    "table {} is another role's: its owner must run `alter table {} replica identity full`, or run \
                     `walhook setup` as the owner",
                    relation.qualified(),
                    relation.quoted()
                ));
            }
            self.identities.push(relation);
        }
        self.published.push(root);
    }

    /// What was there before the slot is read once, when it is made.
    fn readable(&mut self, table: Table, relation: &Relation, columns: &[&str]) {
        let mut columns = columns.iter().map(|column| self.source.tables.column(table, column));
        let name = relation.qualified();
        if columns.any(|column| !relation.readable.iter().any(|have| have == column)) {
            self.problems.push(format!("table {name} cannot be read: `grant select on {name}` to our role"));
        }
        if relation.row_security {
            self.problems.push(format!(
                "row-level security hides rows of {name} from our role: give it `bypassrls` or a policy that shows all"
            ));
        }
    }

    fn publication(&mut self, found: Option<Publication>, server: &Server) -> PublicationPlan {
        let name = &self.source.publication;
        let missing: Vec<&Relation> = self
            .published
            .iter()
            .filter(|relation| !found.as_ref().is_some_and(|publication| publication.covers(relation)))
            .collect();
        for relation in missing.iter().filter(|relation| !relation.owned) {
            self.problems.push(format!(
                "table {} is another role's: only its owner can add it to publication {name}",
                relation.qualified()
            ));
        }
        let tables = missing.iter().map(|relation| relation.quoted()).collect();
        let Some(found) = found else {
            if !server.may_create {
                let (role, database) = (&server.role, &server.database);
                self.problems.push(format!(
                    "the role {role} may not create a publication: `grant create on database \"{database}\" to \"{role}\"`"
                ));
            }
            return PublicationPlan::Create { tables };
        };
        let plan = PublicationPlan::Alter { add: tables, set_options: !found.options_right };
        if !found.owned && (!found.options_right || !missing.is_empty()) {
            self.problems.push(format!(
                "publication {name} is another role's and lacks something: its owner must run what `walhook setup --print` shows"
            ));
        }
        plan
    }
}
