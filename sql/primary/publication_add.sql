alter publication {publication} add table {tables};
