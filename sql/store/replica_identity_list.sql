select table_oid, table_name, identity::text, index_name
from walhook.replica_identity
order by table_name
