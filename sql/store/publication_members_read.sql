-- Reads what the publication streamed at the last start of the stream. $1 slot
select publication_members from walhook.checkpoint where slot = $1
