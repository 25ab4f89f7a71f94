-- Finds the attempts of an event, whose deliveries the API and the web UI show.
-- Without `only`, this would scan every partition while writes wait. Partitions of later days get the index when they are made, and
-- maintenance builds it for the others.
create index attempt_event on only walhook.attempt (event_id);
create index attempt_default_event on walhook.attempt_default (event_id);
alter index walhook.attempt_event attach partition walhook.attempt_default_event;
