-- $1 the publication's name
select
    publication.puballtables as all_tables,
    publication.pubinsert and publication.pubupdate and publication.pubdelete and publication.pubtruncate
        and publication.pubviaroot as options_right,
    pg_has_role(publication.pubowner, 'usage') as owned
from pg_catalog.pg_publication publication
where publication.pubname = $1
